{
  "actionCache": {
    "backend": {
      "completenessChecking": {
        "backend": {
          "sharding": {
            "shards": {
              "0": {
                "backend": {
                  "mirrored": {
                    "backendA": {
                      "grpc": {
                        "client": {
                          "address": "farm-storage-0.farm-storage.builds:8981"
                        }
                      }
                    },
                    "backendB": {
                      "grpc": {
                        "client": {
                          "address": "farm-storage-1.farm-storage.builds:8981"
                        }
                      }
                    },
                    "replicatorAToB": {
                      "local": {}
                    },
                    "replicatorBToA": {
                      "local": {}
                    }
                  }
                },
                "weight": 1
              },
              "1": {
                "backend": {
                  "mirrored": {
                    "backendA": {
                      "grpc": {
                        "client": {
                          "address": "farm-storage-2.farm-storage.builds:8981"
                        }
                      }
                    },
                    "backendB": {
                      "grpc": {
                        "client": {
                          "address": "farm-storage-3.farm-storage.builds:8981"
                        }
                      }
                    },
                    "replicatorAToB": {
                      "local": {}
                    },
                    "replicatorBToA": {
                      "local": {}
                    }
                  }
                },
                "weight": 1
              }
            }
          }
        },
        "maximumTotalTreeSizeBytes": 67108864
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
      "sharding": {
        "shards": {
          "0": {
            "backend": {
              "mirrored": {
                "backendA": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-0.farm-storage.builds:8981"
                    }
                  }
                },
                "backendB": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-1.farm-storage.builds:8981"
                    }
                  }
                },
                "replicatorAToB": {
                  "local": {}
                },
                "replicatorBToA": {
                  "local": {}
                }
              }
            },
            "weight": 1
          },
          "1": {
            "backend": {
              "mirrored": {
                "backendA": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-2.farm-storage.builds:8981"
                    }
                  }
                },
                "backendB": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-3.farm-storage.builds:8981"
                    }
                  }
                },
                "replicatorAToB": {
                  "local": {}
                },
                "replicatorBToA": {
                  "local": {}
                }
              }
            },
            "weight": 1
          }
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
  "executeAuthorizer": {
    "allow": {}
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
      "listenAddresses": [
        ":8980"
      ]
    }
  ],
  "maximumMessageSizeBytes": 2097152,
  "schedulers": {
    "": {
      "endpoint": {
        "addMetadataJmespathExpression": {
          "expression": "{\"build.bazel.remote.execution.v2.requestmetadata-bin\": incomingGRPCMetadata.\"build.bazel.remote.execution.v2.requestmetadata-bin\"}"
        },
        "address": "farm-scheduler.builds:8982"
      }
    }
  }
}
