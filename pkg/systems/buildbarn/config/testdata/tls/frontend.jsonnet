{
  "actionCache": {
    "backend": {
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
        "any": {
          "policies": [
            {
              "tlsClientCertificate": {
                "clientCertificateAuthorities": importstr "authorities.pem",
                "metadataExtractionJmespathExpression": {
                  "expression": "{\"public\": {\"role\": 'client'}}"
                },
                "validationJmespathExpression": {
                  "expression": "contains(uris, 'buildbarn://builds/farm/client')"
                }
              }
            },
            {
              "jwt": {
                "cacheReplacementPolicy": "LEAST_RECENTLY_USED",
                "claimsValidationJmespathExpression": {
                  "expression": "payload.sub == 'buildbarn://builds/farm/client'"
                },
                "jwksInline": {
                  "keys": [
                    {
                      "alg": "ES256",
                      "crv": "P-256",
                      "kty": "EC",
                      "use": "sig",
                      "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                      "y": "x0Hx3k5TnVdzYFqW4gG1Hq1xAE7LA3C1NqzJgKCcFzY"
                    }
                  ]
                },
                "maximumCacheSize": 1000,
                "metadataExtractionJmespathExpression": {
                  "expression": "`{}`"
                }
              }
            }
          ]
        }
      },
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
      },
      "listenAddresses": [
        ":8980"
      ],
      "tls": {
        "serverKeyPair": {
          "files": {
            "certificatePath": "/tls/tls.crt",
            "privateKeyPath": "/tls/tls.key",
            "refreshInterval": "60s"
          }
        }
      }
    }
  ],
  "maximumMessageSizeBytes": 2097152,
  "schedulers": {
    "": {
      "endpoint": {
        "addMetadataJmespathExpression": {
          "expression": "{\"build.bazel.remote.execution.v2.requestmetadata-bin\": incomingGRPCMetadata.\"build.bazel.remote.execution.v2.requestmetadata-bin\"}"
        },
        "address": "farm-scheduler.builds:8982",
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
  }
}
