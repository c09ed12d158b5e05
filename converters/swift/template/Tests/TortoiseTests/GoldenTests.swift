import Foundation
import TortoiseCoreML
import XCTest

@testable import Tortoise

/// Tests that the package computes the same as the Python runtime at export.
final class GoldenTests: XCTestCase {
    func testUniformNumbersEqualNumPys() throws {
        for expected in try Golden.read().0.uniforms {
            var stream = RandomStream.candidate(seed: expected.seed, chunk: expected.chunk)
            XCTAssertEqual(expected.values.map { _ in stream.uniform() }, expected.values, "seed \(expected.seed)")
        }
    }

    func testTextsHaveTheSameChunksAndTokens() throws {
        let (golden, arrays) = try Golden.read()
        let reader = try Synthesis(folder: bundledModel, calls: ReplayedCalls([], arrays)).reader
        for expected in golden.texts {
            let chunks = try reader.chunks(expected.text)
            XCTAssertEqual(chunks.map(\.text), expected.chunks)
            XCTAssertEqual(chunks.map(\.tokens), expected.tokens, expected.text)
        }
    }

    func testTextWithoutALetterIsRefused() throws {
        let synthesis = try Synthesis(folder: bundledModel, calls: ReplayedCalls([], Golden.read().1))
        XCTAssertThrowsError(try synthesis.speak("… !", seed: 0)) {
            XCTAssertEqual($0 as? TortoiseError, .nothingToSay("… !"))
        }
        XCTAssertThrowsError(try synthesis.speak("Hello.", voice: "nobody", seed: 0))
    }

    func testEveryCallCodeAndSampleEqualsThePythonRuntimes() throws {
        let (golden, arrays) = try Golden.read()
        for replay in golden.replays {
            let calls = ReplayedCalls(replay.calls, arrays)
            let speech = try speak(replay, calls)
            XCTAssertEqual(calls.done, replay.calls.count)
            XCTAssertEqual(speech.codes, [replay.codes])
            let sound = try arrays.array(replay.sound)
            XCTAssertEqual(speech.samples.count, sound.values.count)
            let errors = zip(speech.samples, sound.values).map { abs($0 - $1) }
            XCTAssertLessThan(errors.max() ?? 1, 1e-6)
        }
    }

    func speak(_ replay: Golden.Replay, _ calls: any NetworkCalls) throws -> Synthesis.Speech {
        let synthesis = try Synthesis(folder: bundledModel, calls: calls)
        synthesis.sampling.maxCodes = replay.maxCodes
        return try synthesis.speak(replay.text, voice: replay.voice, seed: replay.seed)
    }

    #if canImport(CoreML)
    /// The real packages, with the inputs of each recorded call.
    func testCoreMLComputesWhatTheInterpreterDid() throws {
        let (golden, arrays) = try Golden.read()
        let calls = ReplayedCalls(golden.replays[0].calls, arrays, packages: try CoreMLCalls(folder: bundledModel))
        _ = try speak(golden.replays[0], calls)
        for (output, ratio) in calls.ratios.sorted(by: { $0.key < $1.key }) {
            print(output, "\(ratio.rounded()) dB")
            XCTAssertGreaterThan(ratio, 30, output)
        }
    }

    func testASpeakerSpeaks() async throws {
        let replay = try Golden.read().0.replays[0]
        let samples = try await Speaker().speak(replay.text, voice: replay.voice, seed: replay.seed)
        XCTAssertGreaterThan(samples.count, 2400)
        XCTAssertTrue(samples.allSatisfy { abs($0) <= 1 })
    }
    #endif
}
