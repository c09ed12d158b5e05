import Foundation

/// The content of `tortoise.json`, which `ane export-swift` writes.
public struct ModelTables: Codable, Sendable {
    public struct Bucket: Codable, Sendable {
        public let name: String
        /// Number of columns of a prefill, of slots of a step, or of frames of the vocoder.
        public let length: Int
    }

    public struct Text: Codable, Sendable {
        public struct Rule: Codable, Sendable {
            public let pattern, replacement: String
        }

        public let rules: [Rule]
        public let vocabulary: [String: Int]
        public let merges: [[String]]
        public let special: [Int]
        public let space: Int?
        /// The token for unknown characters. nil means that characters without a token are left out.
        public let unknown: Int?
        /// Desired and maximum characters of a chunk. nil means that a text is one chunk.
        public let split: [Int]?
        public let maxTokens: Int
    }

    public struct Decoder: Codable, Sendable {
        /// Number of layers, number of heads, width of a head.
        public let geometry: [Int]
        public let scale: Float
        public let masked: Float
        public let prefills, steps: [Bucket]
        public let stepColumns: Int
        public let startText, stopText, startCode, stopCode: Int
    }

    public struct Vocoder: Codable, Sendable {
        public let functions: [Bucket]
        public let margin: Int
        public let conditioned: Bool
    }

    public struct Package: Codable, Sendable {
        public let path, computeUnits, identity: String
    }

    public struct Block: Codable, Sendable {
        public let shape: [Int]
        /// Offset in floats.
        public let offset: Int
    }

    public let name: String
    public let text: Text
    public let decoder: Decoder
    public let sampling: Sampling
    public let vocoder: Vocoder
    /// Seconds of silence to keep before and after the speech of a chunk. nil keeps all silence.
    public let silence: [Double]?
    public let packages: [String: Package]
    public let voices: [String]
    public let defaultVoice: String
    public let arrays: [String: Block]
}

/// Named arrays of little-endian float32 in one file.
public struct ArrayFile {
    private let data: Data
    private let blocks: [String: ModelTables.Block]

    public init(_ url: URL, _ blocks: [String: ModelTables.Block]) throws {
        data = try Data(contentsOf: url, options: .alwaysMapped)
        self.blocks = blocks
    }

    /// Throws `TortoiseError.damaged` if the file has no such array.
    public func array(_ name: String) throws -> FloatArray {
        guard let block = blocks[name] else { throw TortoiseError.damaged("the tables have no array \(name)") }
        let array = FloatArray(shape: block.shape)
        let range = block.offset * 4..<(block.offset + array.values.count) * 4
        guard range.upperBound <= data.count else { throw TortoiseError.damaged("the file of \(name) is truncated") }
        data.copyBytes(to: array.values, from: range)
        return array
    }
}
