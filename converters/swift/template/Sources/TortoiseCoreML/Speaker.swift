#if canImport(CoreML)
import CoreML
import Foundation
import Tortoise

/// Speaks with the voices of a model. It speaks one text after another, on a separate thread.
public actor Speaker {
    public static let sampleRate = 24000.0  // Hz
    private let synthesis: Synthesis
    private let queue = DispatchSerialQueue(label: "Tortoise.Speaker")  // Core ML blocks its thread

    public nonisolated var unownedExecutor: UnownedSerialExecutor { queue.asUnownedSerialExecutor() }

    /// Opens a model. Core ML compiles each package when the package is first used, which can take minutes.
    public init(bundle: URL = bundledModel) throws {
        synthesis = try Synthesis(folder: bundle, calls: CoreMLCalls(folder: bundle))
    }

    public var voices: [String] { synthesis.tables.voices }

    /// Returns the sound of a text at 24 kHz, within ±1. Throws as `Synthesis.speak` does, and the errors of Core ML.
    public func speak(
        _ text: String, voice: String? = nil, seed: UInt64 = .random(in: 0...UInt64.max)
    ) throws -> [Float] {
        try synthesis.speak(text, voice: voice, seed: seed).samples
    }
}
#endif
