{
  "blobstore": {
    "actionCache": {
      "completenessChecking": {
        "backend": {
          "sharding": {
            "shards": {
              "0": {
                "backend": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-0.farm-storage.builds:8981",
                      "defaultServiceConfig": {
                        "methodConfig": [
                          {
                            "name": [
                              {}
                            ],
                            "retryPolicy": {
                              "backoffMultiplier": 1.6,
                              "initialBackoff": "0.4s",
                              "maxAttempts": 5,
                              "maxBackoff": "2s",
                              "retryableStatusCodes": [
                                "UNAVAILABLE"
                              ]
                            }
                          }
                        ]
                      },
                      "keepalive": {
                        "permitWithoutStream": true,
                        "time": "20s",
                        "timeout": "10s"
                      },
                      "tls": {
                        "clientKeyPair": {
                          "files": {
                            "certificatePath": "/tls/tls.crt",
                            "privateKeyPath": "/tls/tls.key",
                            "refreshInterval": "60s"
                          }
                        },
                        "serverCertificateAuthorities": importstr "authorities.pem"
                      }
                    }
                  }
                },
                "weight": 1
              },
              "1": {
                "backend": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-1.farm-storage.builds:8981",
                      "defaultServiceConfig": {
                        "methodConfig": [
                          {
                            "name": [
                              {}
                            ],
                            "retryPolicy": {
                              "backoffMultiplier": 1.6,
                              "initialBackoff": "0.4s",
                              "maxAttempts": 5,
                              "maxBackoff": "2s",
                              "retryableStatusCodes": [
                                "UNAVAILABLE"
                              ]
                            }
                          }
                        ]
                      },
                      "keepalive": {
                        "permitWithoutStream": true,
                        "time": "20s",
                        "timeout": "10s"
                      },
                      "tls": {
                        "clientKeyPair": {
                          "files": {
                            "certificatePath": "/tls/tls.crt",
                            "privateKeyPath": "/tls/tls.key",
                            "refreshInterval": "60s"
                          }
                        },
                        "serverCertificateAuthorities": importstr "authorities.pem"
                      }
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
              "grpc": {
                "client": {
                  "address": "farm-storage-0.farm-storage.builds:8981",
                  "defaultServiceConfig": {
                    "methodConfig": [
                      {
                        "name": [
                          {}
                        ],
                        "retryPolicy": {
                          "backoffMultiplier": 1.6,
                          "initialBackoff": "0.4s",
                          "maxAttempts": 5,
                          "maxBackoff": "2s",
                          "retryableStatusCodes": [
                            "UNAVAILABLE"
                          ]
                        }
                      }
                    ]
                  },
                  "keepalive": {
                    "permitWithoutStream": true,
                    "time": "20s",
                    "timeout": "10s"
                  },
                  "tls": {
                    "clientKeyPair": {
                      "files": {
                        "certificatePath": "/tls/tls.crt",
                        "privateKeyPath": "/tls/tls.key",
                        "refreshInterval": "60s"
                      }
                    },
                    "serverCertificateAuthorities": importstr "authorities.pem"
                  }
                }
              }
            },
            "weight": 1
          },
          "1": {
            "backend": {
              "grpc": {
                "client": {
                  "address": "farm-storage-1.farm-storage.builds:8981",
                  "defaultServiceConfig": {
                    "methodConfig": [
                      {
                        "name": [
                          {}
                        ],
                        "retryPolicy": {
                          "backoffMultiplier": 1.6,
                          "initialBackoff": "0.4s",
                          "maxAttempts": 5,
                          "maxBackoff": "2s",
                          "retryableStatusCodes": [
                            "UNAVAILABLE"
                          ]
                        }
                      }
                    ]
                  },
                  "keepalive": {
                    "permitWithoutStream": true,
                    "time": "20s",
                    "timeout": "10s"
                  },
                  "tls": {
                    "clientKeyPair": {
                      "files": {
                        "certificatePath": "/tls/tls.crt",
                        "privateKeyPath": "/tls/tls.key",
                        "refreshInterval": "60s"
                      }
                    },
                    "serverCertificateAuthorities": importstr "authorities.pem"
                  }
                }
              }
            },
            "weight": 1
          }
        }
      }
    }
  },
  "browserUrl": "http://bb-browser.builds",
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
  "maximumMessageSizeBytes": 2097152
}
