/// The decoder for one chunk of text. It calls the functions that take the kv-cache as inputs (cache `io`).
///
/// The cache is a pool of slots. A slot has the keys and values of one position: first the positions of the prefix, then
/// the positions of the codes. A step uses the function with the fewest slots that are enough.
final class LaneDecoder {
    private let calls: any NetworkCalls
    private let tables: ModelTables.Decoder
    private var pool: [String: FloatArray] = [:]
    private var used = 0

    init(_ calls: any NetworkCalls, _ tables: ModelTables.Decoder) {
        (self.calls, self.tables) = (calls, tables)
    }

    struct Output {
        let hidden, logits: [Float]
    }

    /// Decodes the prefix, and returns the output of its last position.
    func prefill(_ prefix: [[Float]], maxCodes: Int) throws -> Output {
        let slots = tables.steps.map(\.length).max() ?? 0
        guard prefix.count + maxCodes <= slots else {
            throw TortoiseError.tooLong(
                "a chunk takes \(prefix.count) positions and its speech up to \(maxCodes), and "
                    + "the decoder has \(slots): shorten the text")
        }
        guard let function = tables.prefills.first(where: { $0.length >= prefix.count }) else {
            var last: Output?
            for start in stride(from: 0, to: prefix.count, by: tables.stepColumns) {
                last = try step(Array(prefix[start..<min(start + tables.stepColumns, prefix.count)]))
            }
            return last!
        }
        let mask = causalMask(columns: function.length, slots: 0, filled: function.length, visible: 0)
        let outputs = try call(function, ["x": packed(prefix, function.length), "mask": mask])
        try store(outputs, count: prefix.count)
        return try output(outputs, column: prefix.count - 1)
    }

    /// Decodes the next columns, at most `stepColumns`, and returns the output of the last column.
    func step(_ columns: [[Float]]) throws -> Output {
        let function = grow(to: used + columns.count)
        let mask = causalMask(
            columns: tables.stepColumns, slots: function.length, filled: columns.count, visible: used)
        let outputs = try call(
            function, ["x": packed(columns, tables.stepColumns), "mask": mask].merging(pool) { first, _ in first })
        try store(outputs, count: columns.count)
        return try output(outputs, column: columns.count - 1)
    }

    private func call(_ function: ModelTables.Bucket, _ inputs: [String: FloatArray]) throws -> [String: FloatArray] {
        try calls.call(NetworkFunction(network: "autoregressive", name: function.name), inputs)
    }

    /// Returns the mask (1, 1, columns, slots + columns). Each of the first `filled` columns attends to the first
    /// `visible` slots, to the columns before it, and to itself.
    private func causalMask(columns: Int, slots: Int, filled: Int, visible: Int) -> FloatArray {
        let mask = FloatArray(shape: [1, 1, columns, slots + columns], repeating: tables.masked)
        for column in 0..<filled {
            let row = column * (slots + columns)
            for slot in 0..<visible { mask.values[row + slot] = 0 }
            for other in 0...column { mask.values[row + slots + other] = 0 }
        }
        return mask
    }

    /// Returns the columns times the scale, (1, D, 1, count). Unused columns are ramps, which norms do not turn into NaN.
    private func packed(_ columns: [[Float]], _ count: Int) -> FloatArray {
        let width = columns[0].count
        let x = FloatArray(shape: [1, width, 1, count])
        for channel in 0..<width {
            let ramp = Float((-1 + 2 * Double(channel) / Double(max(width - 1, 1))) * Double(tables.scale))
            for column in 0..<count {
                x.values[channel * count + column] =
                    column < columns.count
                    ? columns[column][channel] * tables.scale : ramp
            }
        }
        return x
    }

    /// Returns the function with the fewest slots that are enough, and lets the pool grow to its number of slots.
    @discardableResult
    private func grow(to slots: Int) -> ModelTables.Bucket {
        let function = tables.steps.first { $0.length >= slots }!
        for name in ["keys", "values"] where pool[name]?.shape.last != function.length {
            let larger = FloatArray(shape: tables.geometry + [function.length])
            if let old = pool[name] { copyColumns(old, 0..<used, to: larger, at: 0) }
            pool[name] = larger
        }
        return function
    }

    private func store(_ outputs: [String: FloatArray], count: Int) throws {
        grow(to: used + count)
        for name in ["keys", "values"] {
            copyColumns(try required(outputs, "new_" + name), 0..<count, to: pool[name]!, at: used)
        }
        used += count
    }

    private func output(_ outputs: [String: FloatArray], column: Int) throws -> Output {
        let names = outputs.keys.filter { $0.hasPrefix("logits") }.sorted { ($0.count, $0) < ($1.count, $1) }
        let logits = names.flatMap { outputs[$0]!.column(column) }
        guard logits.allSatisfy(\.isFinite) else { throw TortoiseError.notFinite("the decoder") }
        return Output(hidden: try required(outputs, "hidden").column(column), logits: logits)
    }
}

/// Copies columns from one array to another. The shapes of the arrays differ only in their last axis.
private func copyColumns(_ source: FloatArray, _ columns: Range<Int>, to target: FloatArray, at start: Int) {
    let (from, to) = (source.shape.last!, target.shape.last!)
    for row in 0..<source.values.count / from {
        for column in columns {
            target.values[row * to + start + column - columns.lowerBound] = source.values[row * from + column]
        }
    }
}

/// Throws `TortoiseError.damaged` when a function lacks an output.
func required(_ outputs: [String: FloatArray], _ name: String) throws -> FloatArray {
    guard let output = outputs[name] else { throw TortoiseError.damaged("a function has no output \(name)") }
    return output
}
