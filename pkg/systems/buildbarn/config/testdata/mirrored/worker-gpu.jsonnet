{
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
    "contentAddressableStorage": {
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
    }
  },
  "browserUrl": "https://browser.example.com",
  "buildDirectories": [
    {
      "native": {
        "buildDirectoryPath": "/worker/build",
        "cacheDirectoryPath": "/worker/cache",
        "cacheReplacementPolicy": "LEAST_RECENTLY_USED",
        "maximumCacheFileCount": 10000,
        "maximumCacheSizeBytes": 1073741824
      },
      "runners": [
        {
          "concurrency": 1,
          "endpoint": {
            "address": "unix:///worker/runner",
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
            }
          },
          "instanceNamePrefix": "gpu",
          "platform": {
            "properties": []
          },
          "workerId": {
            "node": std.extVar("NODE_NAME"),
            "pod": std.extVar("POD_NAME")
          }
        }
      ]
    }
  ],
  "directoryCache": {
    "cacheReplacementPolicy": "LEAST_RECENTLY_USED",
    "maximumCount": 1000,
    "maximumSizeBytes": 1024000
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
    },
    "setUmask": {
      "umask": 0
    }
  },
  "inputDownloadConcurrency": 10,
  "maximumMessageSizeBytes": 2097152,
  "outputUploadConcurrency": 11,
  "scheduler": {
    "address": "farm-scheduler.builds:8983",
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
  },
  "supportLegacyOutputFilesAndDirectories": true
}
