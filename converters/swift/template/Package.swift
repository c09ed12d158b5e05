// swift-tools-version: 6.0
// The Swift package: its targets, and the systems on which it runs.
import PackageDescription

let package = Package(
    name: "Tortoise",
    platforms: [.macOS(.v15), .iOS(.v18)],
    products: [
        .library(name: "Tortoise", targets: ["Tortoise"]),
        .library(name: "TortoiseCoreML", targets: ["TortoiseCoreML"]),
    ],
    targets: [
        .target(name: "Tortoise"),
        .target(name: "TortoiseCoreML", dependencies: ["Tortoise"], resources: [.copy("Model")]),
        .testTarget(
            name: "TortoiseTests", dependencies: ["Tortoise", "TortoiseCoreML"], resources: [.copy("Golden")]),
    ]
)
