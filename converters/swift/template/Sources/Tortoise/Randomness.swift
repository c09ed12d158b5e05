/// PCG64 (O'Neill 2014), with the same doubles as NumPy's `default_rng(SeedSequence(seed, spawn_key=key))`.
public struct RandomStream {
    private var state: UInt128
    private let increment: UInt128
    private static let multiplier: UInt128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645

    public init(seed: UInt64, key: [UInt32]) {
        let words = seedWords(seed: seed, key: key)
        func wide(_ index: Int) -> UInt128 {
            let halves = (0..<4).map { UInt128(words[index + $0]) }
            return (halves[1] << 96) | (halves[0] << 64) | (halves[3] << 32) | halves[2]
        }
        increment = (wide(4) << 1) | 1
        state = increment &+ wide(0)
        state = state &* Self.multiplier &+ increment
    }

    /// The random numbers for a chunk's only candidate, as in `ane.models.tortoise.sampling`.
    public static func candidate(seed: UInt64, chunk: Int) -> RandomStream {
        RandomStream(seed: seed, key: [1, UInt32(chunk), 0])
    }

    /// A uniform number in [0, 1) with 53 random bits.
    public mutating func uniform() -> Double {
        state = state &* Self.multiplier &+ increment
        let folded = UInt64(truncatingIfNeeded: state >> 64) ^ UInt64(truncatingIfNeeded: state)
        let turn = UInt64(truncatingIfNeeded: state >> 122)
        let bits = (folded >> turn) | (folded << ((64 - turn) & 63))
        return Double(bits >> 11) * 0x1p-53
    }
}

/// The eight words that NumPy's SeedSequence generates for PCG64 (O'Neill's `seed_seq_fe`).
func seedWords(seed: UInt64, key: [UInt32]) -> [UInt32] {
    var entropy = [UInt32(truncatingIfNeeded: seed)]
    if seed >> 32 != 0 { entropy.append(UInt32(seed >> 32)) }
    if !key.isEmpty { entropy += Array(repeating: 0, count: 4 - entropy.count) + key }
    var factor: UInt32 = 0x43b0_d7e5

    func hashed(_ value: UInt32) -> UInt32 {
        var value = value ^ factor
        factor = factor &* 0x931e_8875
        value = value &* factor
        return value ^ (value >> 16)
    }
    func mixed(_ x: UInt32, _ y: UInt32) -> UInt32 {
        let result = 0xca01_f9dd &* x &- 0x4973_f715 &* y
        return result ^ (result >> 16)
    }
    var pool = (0..<4).map { hashed($0 < entropy.count ? entropy[$0] : 0) }
    for source in 0..<4 {
        for target in 0..<4 where source != target { pool[target] = mixed(pool[target], hashed(pool[source])) }
    }
    for word in entropy.dropFirst(4) {
        for target in 0..<4 { pool[target] = mixed(pool[target], hashed(word)) }
    }
    var outputFactor: UInt32 = 0x8b51_f9dd
    return (0..<8).map { index in
        var value = pool[index % 4] ^ outputFactor
        outputFactor = outputFactor &* 0x58f3_8ded
        value = value &* outputFactor
        return value ^ (value >> 16)
    }
}
