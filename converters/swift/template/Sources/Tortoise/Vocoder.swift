import Foundation

/// Turns latents into sound with HiFi-GAN, in windows that overlap by the network's receptive field.
struct Vocoder {
    let calls: any NetworkCalls
    let tables: ModelTables.Vocoder

    /// Turns latents, N rows of width D, and the voice's latent into sound at 24 kHz.
    func sound(_ latents: [[Float]], conditioning: [Float]) throws -> [Float] {
        // 22050/1024 Hz to 22050/256 Hz, then to 24000/256 Hz
        let frames = interpolated(interpolated(latents, scale: 4), scale: 24000 / 22050)
        let largest = tables.functions.map(\.length).max()!
        var sound: [Float] = []
        for first in stride(from: 0, to: frames.count, by: largest) {
            let count = min(frames.count - first, largest)
            let function = tables.functions.first { $0.length >= count }!
            let outputs = try calls.call(
                NetworkFunction(network: "hifigan", name: function.name),
                inputs(frames, begin: first - tables.margin, width: function.length + 2 * tables.margin, conditioning))
            let output = try required(outputs, "sound")  // (1, n, 1, samples / n): channels are samples side by side
            let samples = (0..<output.shape.last!).flatMap(output.column)
            sound += samples.prefix(count * (samples.count / function.length))
        }
        guard sound.allSatisfy(\.isFinite) else { throw TortoiseError.notFinite("the vocoder") }
        return sound
    }

    /// Returns the inputs for frames `begin` … `begin + width`. Outside the sound they are 0, and `inside` is 0 too.
    private func inputs(_ frames: [[Float]], begin: Int, width: Int, _ conditioning: [Float]) -> [String: FloatArray] {
        let channels = frames[0].count
        let (x, inside) = (FloatArray(shape: [1, channels, 1, width]), FloatArray(shape: [1, 1, 1, width]))
        for column in 0..<width where frames.indices.contains(begin + column) {
            inside.values[column] = 1
            for channel in 0..<channels { x.values[channel * width + column] = frames[begin + column][channel] }
        }
        let constant =
            tables.conditioned
            ? ["conditioning": FloatArray(shape: [1, conditioning.count, 1, 1], conditioning)] : [:]
        return constant.merging(["x": x, "inside": inside]) { first, _ in first }
    }
}

/// Interpolates rows linearly to `scale` times their number, as torch does with align_corners=False.
func interpolated(_ rows: [[Float]], scale: Double) -> [[Float]] {
    let count = Int(Double(rows.count) * scale)
    if count == rows.count { return rows }
    return (0..<count).map { index in
        let source = Float(max(Double(Float(1 / scale)) * (Double(index) + 0.5) - 0.5, 0))
        let before = min(Int(source), rows.count - 1)
        let after = min(before + 1, rows.count - 1)
        let weight = source - Float(before)
        return zip(rows[before], rows[after]).map { $0 * (1 - weight) + $1 * weight }
    }
}

/// Shortens the silence at both ends of a sound to the given seconds. Silence means frames of 10 ms below −45 dBFS.
func trimmed(_ sound: [Float], keeping seconds: [Double]?) -> [Float] {
    guard let seconds else { return sound }
    let (lead, tail) = (Int((seconds[0] * 24000).rounded()), Int((seconds[1] * 24000).rounded()))
    let quiet = Float(pow(10, -45.0 / 20)) * Float(pow(10, -45.0 / 20))
    let loud = stride(from: 0, to: sound.count, by: 240).filter { start in
        let frame = sound[start..<min(start + 240, sound.count)]
        return !(frame.reduce(0) { $0 + $1 * $1 } / Float(frame.count) <= quiet)
    }
    guard let first = loud.first, let last = loud.last else {
        return fadedIn(Array(sound.suffix(lead)), lead, cut: sound.count > lead)
    }
    let (start, end) = (max(0, first - lead), min(last + 240, sound.count))
    var kept = fadedIn(Array(sound[start..<end]), lead, cut: start > 0)
    var silence = Array(sound[end..<min(end + tail, sound.count)])
    if sound.count > end + tail {
        let fade = min(120, silence.count)
        for index in 0..<fade { silence[silence.count - 1 - index] *= (Float(index) + 0.5) / Float(fade) }
    }
    kept += silence
    return kept
}

private func fadedIn(_ sound: [Float], _ lead: Int, cut: Bool) -> [Float] {
    guard cut else { return sound }
    let fade = min(120, lead, sound.count)
    return sound.enumerated().map { $0 < fade ? $1 * (Float($0) + 0.5) / Float(fade) : $1 }
}
