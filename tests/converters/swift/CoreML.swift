// The declarations of Core ML and Dispatch that TortoiseCoreML uses, as Apple documents them: they check its types.
import Foundation

public enum MLComputeUnits { case cpuOnly, cpuAndGPU, all, cpuAndNeuralEngine }
public enum MLMultiArrayDataType { case double, float32, float16, int32 }

open class MLModelConfiguration: NSObject {
    public override init() {}
    public var functionName: String? = nil
    public var computeUnits: MLComputeUnits = .all
}

open class MLMultiArray: NSObject {
    public init(dataPointer: UnsafeMutableRawPointer, shape: [NSNumber], dataType: MLMultiArrayDataType,
                strides: [NSNumber], deallocator: ((UnsafeMutableRawPointer) -> Void)? = nil) throws {}
    public var shape: [NSNumber] { fatalError() }
}

public protocol MLShapedArrayScalar {}
extension Float: MLShapedArrayScalar {}

public struct MLShapedArray<Scalar: MLShapedArrayScalar> {
    public init(converting array: MLMultiArray) { fatalError() }
    public var scalars: [Scalar] { fatalError() }
}

open class MLFeatureValue: NSObject {
    public var multiArrayValue: MLMultiArray? { fatalError() }
}

public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for featureName: String) -> MLFeatureValue?
}

open class MLDictionaryFeatureProvider: NSObject, MLFeatureProvider {
    public init(dictionary: [String: Any]) throws {}
    public var featureNames: Set<String> { fatalError() }
    public func featureValue(for featureName: String) -> MLFeatureValue? { fatalError() }
}

open class MLModel: NSObject {
    public init(contentsOf url: URL, configuration: MLModelConfiguration) throws {}
    @available(*, noasync) public class func compileModel(at modelURL: URL) throws -> URL { fatalError() }
    public func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider { fatalError() }
}

public final class DispatchSerialQueue: SerialExecutor {
    public init(label: String) {}
    public func enqueue(_ job: consuming ExecutorJob) { fatalError() }
    public func asUnownedSerialExecutor() -> UnownedSerialExecutor { UnownedSerialExecutor(ordinary: self) }
}
