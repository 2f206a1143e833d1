{
  "buildDirectoryPath": "/worker/build",
  "grpcServers": [
    {
      "authenticationPolicy": {
        "allow": {}
      },
      "listenPaths": [
        "/worker/runner"
      ],
      "stopGracefully": true
    }
  ]
}
