{
  "authorizer": {
    "allow": {}
  },
  "blobstore": {
    "actionCache": {
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
    "contentAddressableStorage": {
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
  "httpServers": [
    {
      "authenticationPolicy": {
        "allow": {}
      },
      "listenAddresses": [
        ":7984"
      ]
    }
  ],
  "maximumMessageSizeBytes": 2097152,
  "requestMetadataLinksJmespathExpression": {
    "expression": "`{}`"
  }
}
