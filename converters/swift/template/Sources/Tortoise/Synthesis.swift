import Foundation

/// Turns text into chunks, chunks into codes and latents, and latents into sound. It makes one candidate per chunk and uses
/// no diffusion, as the preset `fastest` of `ane say`.
public final class Synthesis {
    public let tables: ModelTables
    public var sampling: Sampling
    public let reader: TextReader
    private let calls: any NetworkCalls
    private let arrays: ArrayFile
    private let text, textPosition, code, codePosition: FloatArray

    /// `folder` is the folder that `ane export-swift` wrote as Sources/TortoiseCoreML/Model.
    public init(folder: URL, calls: any NetworkCalls) throws {
        tables = try JSONDecoder().decode(
            ModelTables.self, from: Data(contentsOf: folder.appendingPathComponent("tortoise.json")))
        arrays = try ArrayFile(folder.appendingPathComponent("tables.f32"), tables.arrays)
        (text, textPosition) = (try arrays.array("text"), try arrays.array("text_position"))
        (code, codePosition) = (try arrays.array("code"), try arrays.array("code_position"))
        (self.calls, sampling, reader) = (calls, tables.sampling, try TextReader(tables.text))
    }

    /// The sound of a text, and the codes of each chunk.
    public struct Speech: Sendable {
        public var samples: [Float] = []
        public var codes: [[Int]] = []
    }

    /// Speaks a text. For the same tokens and seed, it draws the same codes as `ane say --preset fastest`.
    ///
    /// Throws `TortoiseError` if there is nothing to say, a word is too long, or the voice is unknown. Throws
    /// `CancellationError` between two steps of the decoder if its task is cancelled.
    public func speak(_ text: String, voice: String? = nil, seed: UInt64) throws -> Speech {
        let name = voice ?? tables.defaultVoice
        guard tables.voices.contains(name) else {
            throw TortoiseError.unknownVoice(name, available: tables.voices)
        }
        let conditioning = try arrays.array("voice/" + name).row(0)
        let vocoder = Vocoder(calls: calls, tables: tables.vocoder)
        var speech = Speech()
        for (index, chunk) in try reader.chunks(text).enumerated() {
            let (codes, latents) = try decode(chunk.tokens, conditioning, .candidate(seed: seed, chunk: index))
            speech.codes.append(codes)
            speech.samples += trimmed(try vocoder.sound(latents, conditioning: conditioning), keeping: tables.silence)
        }
        return speech
    }

    /// Samples codes until the stop code. Returns the codes, and the latents of the codes and of the stop code.
    private func decode(_ tokens: [Int], _ conditioning: [Float], _ stream: RandomStream) throws -> ([Int], [[Float]]) {
        let decoder = LaneDecoder(calls, tables.decoder)
        var (stream, codes, latents) = (stream, [Int](), [[Float]]())
        var output = try decoder.prefill(prefix(conditioning, tokens), maxCodes: sampling.maxCodes)
        let fakeToken = 1  // upstream's placeholder for the prefix. The repetition penalty applies to it
        var history: Set = [fakeToken, tables.decoder.startCode]
        while true {
            try Task.checkCancellation()
            var scores = output.logits
            scores[tables.decoder.startCode] = -.infinity
            let (ids, probabilities) = sampling.distribution(scores, history: history)
            let code = sampled(ids, probabilities, uniform: stream.uniform())
            latents.append(output.hidden)
            if code == tables.decoder.stopCode { return (codes, latents) }
            codes.append(code)
            history.insert(code)
            if codes.count == sampling.maxCodes { return (codes, latents) }
            output = try decoder.step([column(code, at: codes.count)])
        }
    }

    /// Returns the columns [conditioning][start, tokens, stop, stop][start of codes]. Upstream pads the text by one stop token.
    private func prefix(_ conditioning: [Float], _ tokens: [Int]) -> [[Float]] {
        let stop = tables.decoder.stopText
        let ids = [tables.decoder.startText] + tokens + [stop, stop]
        let words = ids.enumerated().map { sum(text.row($1), textPosition.row($0)) }
        return [conditioning] + words + [column(tables.decoder.startCode, at: 0)]
    }

    private func column(_ id: Int, at position: Int) -> [Float] {
        sum(code.row(id), codePosition.row(position))
    }

    private func sum(_ a: [Float], _ b: [Float]) -> [Float] {
        zip(a, b).map(+)
    }
}
