#if canImport(CoreML)
import CoreML
import Foundation
import Tortoise

/// Runs functions of the packages with Core ML, and loads each function at its first call.
public final class CoreMLCalls: NetworkCalls {
    private let folder: URL
    private let packages: [String: ModelTables.Package]
    private var compiled: [String: URL] = [:]
    private var loaded: [NetworkFunction: MLModel] = [:]

    public init(folder: URL) throws {
        self.folder = folder
        packages = try JSONDecoder().decode(
            ModelTables.self, from: Data(contentsOf: folder.appendingPathComponent("tortoise.json"))
        ).packages
    }

    public func call(_ function: NetworkFunction, _ inputs: [String: FloatArray]) throws -> [String: FloatArray] {
        let features = try MLDictionaryFeatureProvider(dictionary: inputs.mapValues(multiArray))
        let model = try model(function)
        let outputs = try withExtendedLifetime(inputs) { try model.prediction(from: features) }
        var arrays: [String: FloatArray] = [:]
        for name in outputs.featureNames {
            guard let array = outputs.featureValue(for: name)?.multiArrayValue else { continue }
            // converts float16, and copies the values row by row, whatever their strides
            let values = MLShapedArray<Float>(converting: array).scalars
            arrays[name] = FloatArray(shape: array.shape.map(\.intValue), values)
        }
        return arrays
    }

    /// Returns an array of Core ML in the same memory. Core ML converts it to the type of the input.
    private func multiArray(_ array: FloatArray) throws -> MLMultiArray {
        var strides = Array(repeating: 1, count: array.shape.count)
        for axis in array.shape.indices.dropLast().reversed() {
            strides[axis] = strides[axis + 1] * array.shape[axis + 1]
        }
        return try MLMultiArray(
            dataPointer: array.values.baseAddress!, shape: array.shape.map { NSNumber(value: $0) }, dataType: .float32,
            strides: strides.map { NSNumber(value: $0) })
    }

    private func model(_ function: NetworkFunction) throws -> MLModel {
        if let model = loaded[function] { return model }
        guard let package = packages[function.network] else {
            throw TortoiseError.damaged("this model has no package of \(function.network)")
        }
        let configuration = MLModelConfiguration()
        configuration.functionName = function.name
        configuration.computeUnits = computeUnits(package.computeUnits)
        let model = try MLModel(contentsOf: compiledPackage(function.network, package), configuration: configuration)
        loaded[function] = model
        return model
    }

    private func computeUnits(_ name: String) -> MLComputeUnits {
        switch name {
        case "CPU_ONLY": .cpuOnly
        case "CPU_AND_GPU": .cpuAndGPU
        case "CPU_AND_NE": .cpuAndNeuralEngine
        default: .all
        }
    }

    /// Returns the compiled package. It is compiled unless the caches folder already has it.
    private func compiledPackage(_ network: String, _ package: ModelTables.Package) throws -> URL {
        if let url = compiled[network] { return url }
        let caches = try FileManager.default.url(
            for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let target = caches.appendingPathComponent("Tortoise/\(network)-\(package.identity).mlmodelc")
        if !FileManager.default.fileExists(atPath: target.path) {
            let fresh = try MLModel.compileModel(at: folder.appendingPathComponent(package.path))
            try FileManager.default.createDirectory(
                at: target.deletingLastPathComponent(), withIntermediateDirectories: true)
            try FileManager.default.moveItem(at: fresh, to: target)
        }
        compiled[network] = target
        return target
    }
}
#endif
