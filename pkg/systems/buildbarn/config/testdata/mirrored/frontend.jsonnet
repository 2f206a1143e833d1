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
                          }
                        }
                      }
                    },
                    "backendB": {
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
                          }
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
                          "address": "farm-storage-2.farm-storage.builds:8981",
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
                          }
                        }
                      }
                    },
                    "backendB": {
                      "grpc": {
                        "client": {
                          "address": "farm-storage-3.farm-storage.builds:8981",
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
                          }
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
                      }
                    }
                  }
                },
                "backendB": {
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
                      }
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
                      "address": "farm-storage-2.farm-storage.builds:8981",
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
                      }
                    }
                  }
                },
                "backendB": {
                  "grpc": {
                    "client": {
                      "address": "farm-storage-3.farm-storage.builds:8981",
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
                      }
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
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
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
        "address": "farm-scheduler.builds:8982",
        "keepalive": {
          "permitWithoutStream": true,
          "time": "20s",
          "timeout": "10s"
        }
      }
    }
  }
}
