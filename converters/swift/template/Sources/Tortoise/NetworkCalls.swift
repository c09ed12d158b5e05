/// An array of floats, stored row by row. Its address does not change, so that Core ML can read it without a copy.
public final class FloatArray {
    public let shape: [Int]
    public let values: UnsafeMutableBufferPointer<Float>

    public init(shape: [Int], repeating value: Float = 0) {
        self.shape = shape
        values = .allocate(capacity: shape.reduce(1, *))
        values.initialize(repeating: value)
    }

    /// Stops with a precondition failure if the number of `values` does not fit `shape`.
    public convenience init(shape: [Int], _ values: some Collection<Float>) {
        self.init(shape: shape)
        precondition(values.count == self.values.count)
        for (index, value) in values.enumerated() { self.values[index] = value }
    }

    deinit { values.deallocate() }

    /// Row `index` of a table (rows, width).
    public func row(_ index: Int) -> [Float] {
        let width = shape[1]
        return Array(values[index * width..<(index + 1) * width])
    }

    /// Column `index` of an array whose last axis counts columns. It has the values of all other axes, in order.
    public func column(_ index: Int) -> [Float] {
        let columns = shape[shape.count - 1]
        return stride(from: index, to: values.count, by: columns).map { values[$0] }
    }
}

/// One function of a network's Core ML package. Its inputs and outputs have fixed shapes.
public struct NetworkFunction: Hashable, Sendable {
    public let network: String
    public let name: String

    public init(network: String, name: String) {
        (self.network, self.name) = (network, name)
    }
}

/// Computes the networks. In `TortoiseCoreML`, Core ML does. In the tests, recorded calls take its place.
public protocol NetworkCalls {
    /// Inputs and outputs have the shapes that the function declares.
    func call(_ function: NetworkFunction, _ inputs: [String: FloatArray]) throws -> [String: FloatArray]
}

public enum TortoiseError: Error, Equatable, CustomStringConvertible {
    case nothingToSay(String)
    case tooLong(String)
    case unknownVoice(String, available: [String])
    case notFinite(String)
    case damaged(String)

    public var description: String {
        switch self {
        case .nothingToSay(let text):
            "there is nothing to say in \"\(text)\": it has no letter that the voice can speak"
        case .tooLong(let reason): reason
        case .unknownVoice(let name, let available):
            "there is no voice \(name); there are \(available.joined(separator: ", "))"
        case .notFinite(let network): "\(network) returned NaN or infinite numbers"
        case .damaged(let reason): reason
        }
    }
}
