{
  "actionCache": {
    "backend": {
      "local": {
        "blocksOnBlockDevice": {
          "source": {
            "file": {
              "path": "/storage-ac/blocks",
              "sizeBytes": 1039138816
            }
          },
          "spareBlocks": 3
        },
        "currentBlocks": 24,
        "keyLocationMapMaximumGetAttempts": 16,
        "keyLocationMapMaximumPutAttempts": 64,
        "keyLocationMapOnBlockDevice": {
          "file": {
            "path": "/storage-ac/key_location_map",
            "sizeBytes": 12582912
          }
        },
        "newBlocks": 1,
        "oldBlocks": 8,
        "persistent": {
          "minimumEpochInterval": "300s",
          "stateDirectoryPath": "/storage-ac/persistent_state"
        }
      }
    },
    "getAuthorizer": {
      "allow": {}
    },
    "putAuthorizer": {
      "allow": {}
    }
  },
  "contentAddressableStorage": {
    "backend": {
      "local": {
        "blocksOnBlockDevice": {
          "source": {
            "file": {
              "path": "/storage-cas/blocks",
              "sizeBytes": 34358689792
            }
          },
          "spareBlocks": 3
        },
        "currentBlocks": 24,
        "keyLocationMapMaximumGetAttempts": 16,
        "keyLocationMapMaximumPutAttempts": 64,
        "keyLocationMapOnBlockDevice": {
          "file": {
            "path": "/storage-cas/key_location_map",
            "sizeBytes": 421527552
          }
        },
        "newBlocks": 3,
        "oldBlocks": 8,
        "persistent": {
          "minimumEpochInterval": "300s",
          "stateDirectoryPath": "/storage-cas/persistent_state"
        }
      }
    },
    "findMissingAuthorizer": {
      "allow": {}
    },
    "getAuthorizer": {
      "allow": {}
    },
    "putAuthorizer": {
      "allow": {}
    }
  },
  "global": {
    "diagnosticsHttpServer": {
      "enablePrometheus": true,
      "httpServers": [
        {
          "authenticationPolicy": {
            "allow": {}
          },
          "listenAddresses": [
            ":9980"
          ]
        }
      ]
    }
  },
  "grpcServers": [
    {
      "authenticationPolicy": {
        "allow": {}
      },
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
      },
      "listenAddresses": [
        ":8981"
      ]
    }
  ],
  "maximumMessageSizeBytes": 2097152
}
