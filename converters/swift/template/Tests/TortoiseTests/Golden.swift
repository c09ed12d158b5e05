import Foundation
import XCTest

@testable import Tortoise

/// What the Python runtime computed when the package was exported, from Golden/golden.json and Golden/golden.f32.
struct Golden: Decodable {
    struct Text: Decodable {
        let text: String
        let chunks: [String]
        let tokens: [[Int]]
    }

    struct Uniforms: Decodable {
        let seed: UInt64
        let chunk: Int
        let values: [Double]
    }

    /// A summary of an array: its shape, its norm, and its dot product with fixed pseudo-random numbers.
    struct Fingerprint: Decodable {
        let shape: [Int]
        let norm, product: Double
    }

    struct Call: Decodable {
        let network, function: String
        let inputs: [String: Fingerprint]
        let outputs: [String: String]  // names in the file of arrays
    }

    struct Replay: Decodable {
        let text, voice: String
        let seed: UInt64
        let maxCodes: Int
        let codes: [Int]
        let sound: String  // name in the file of arrays
        let calls: [Call]
    }

    let texts: [Text]
    let uniforms: [Uniforms]
    let replays: [Replay]
    let arrays: [String: ModelTables.Block]

    static let folder = Bundle.module.resourceURL!.appendingPathComponent("Golden")

    static func read() throws -> (Golden, ArrayFile) {
        let golden = try JSONDecoder().decode(
            Golden.self, from: Data(contentsOf: folder.appendingPathComponent("golden.json")))
        return (golden, try ArrayFile(folder.appendingPathComponent("golden.f32"), golden.arrays))
    }
}

/// Compares the inputs of each call with the recorded inputs, and answers with the recorded outputs.
final class ReplayedCalls: NetworkCalls {
    private(set) var done = 0
    private let calls: [Golden.Call]
    private let arrays: ArrayFile
    private let packages: (any NetworkCalls)?
    /// The lowest signal-to-noise ratio of each output of `packages`, in dB.
    private(set) var ratios: [String: Double] = [:]

    /// `packages` runs real packages. They get the same inputs, and their outputs are compared with the recorded outputs.
    init(_ calls: [Golden.Call], _ arrays: ArrayFile, packages: (any NetworkCalls)? = nil) {
        (self.calls, self.arrays, self.packages) = (calls, arrays, packages)
    }

    func call(_ function: NetworkFunction, _ inputs: [String: FloatArray]) throws -> [String: FloatArray] {
        guard done < calls.count else { throw TortoiseError.damaged("call \(done) was not recorded") }
        let recorded = calls[done]
        XCTAssertEqual(function, NetworkFunction(network: recorded.network, name: recorded.function), "call \(done)")
        XCTAssertEqual(Set(inputs.keys), Set(recorded.inputs.keys), "call \(done)")
        for (name, expected) in recorded.inputs { compare(inputs[name], expected, "call \(done), input \(name)") }
        done += 1
        let outputs = try recorded.outputs.mapValues(arrays.array)
        if let real = try packages?.call(function, inputs) {
            for (name, expected) in outputs {
                let ratio = real[name].map { signalToNoise($0, expected) } ?? -.infinity
                ratios["\(function.name) \(name)"] = min(ratio, ratios["\(function.name) \(name)"] ?? .infinity)
            }
        }
        return outputs
    }

    private func compare(_ array: FloatArray?, _ expected: Golden.Fingerprint, _ what: String) {
        guard let array, array.shape == expected.shape else {
            return XCTFail("\(what): the shape is \(array?.shape ?? []), not \(expected.shape)")
        }
        var (norm, product, weight) = (0.0, 0.0, UInt32(1))
        for value in array.values {
            weight = weight &* 1_664_525 &+ 1_013_904_223
            norm += Double(value) * Double(value)
            product += Double(value) * (Double(weight) * 0x1p-32 - 0.5)
        }
        XCTAssertEqual(norm.squareRoot(), expected.norm, accuracy: 1e-5 * expected.norm, what)
        XCTAssertEqual(product, expected.product, accuracy: 1e-5 * expected.norm, what)
    }
}

/// Returns the signal-to-noise ratio in dB, which is infinite if the arrays are equal.
func signalToNoise(_ array: FloatArray, _ expected: FloatArray) -> Double {
    guard array.shape == expected.shape else { return -.infinity }
    var (signal, noise) = (0.0, 0.0)
    for (value, wanted) in zip(array.values, expected.values) {
        signal += Double(wanted * wanted)
        noise += Double((value - wanted) * (value - wanted))
    }
    return noise == 0 ? .infinity : 10 * log10(signal / noise)
}
