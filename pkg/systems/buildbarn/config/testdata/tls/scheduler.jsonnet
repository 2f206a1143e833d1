{
  "actionRouter": {
    "simple": {
      "initialSizeClassAnalyzer": {
        "defaultExecutionTimeout": "1800s",
        "maximumExecutionTimeout": "7200s"
      },
      "invocationKeyExtractors": [
        {
          "correlatedInvocationsId": {}
        },
        {
          "toolInvocationId": {}
        }
      ],
      "platformKeyExtractor": {
        "actionAndCommand": {}
      }
    }
  },
  "adminHttpServers": [
    {
      "authenticationPolicy": {
        "allow": {}
      },
      "listenAddresses": [
        ":7982"
      ]
    }
  ],
  "browserUrl": "http://bb-browser.builds",
  "buildQueueStateGrpcServers": [
    {
      "authenticationPolicy": {
        "tlsClientCertificate": {
          "clientCertificateAuthorities": importstr "authorities.pem",
          "metadataExtractionJmespathExpression": {
            "expression": "{\"public\": {\"role\": 'operator'}}"
          },
          "validationJmespathExpression": {
            "expression": "contains(uris, 'buildbarn://builds/farm/operator')"
          }
        }
      },
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
      },
      "listenAddresses": [
        ":8984"
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
  "clientGrpcServers": [
    {
      "authenticationPolicy": {
        "tlsClientCertificate": {
          "clientCertificateAuthorities": importstr "authorities.pem",
          "metadataExtractionJmespathExpression": {
            "expression": "{\"public\": {\"role\": 'frontend'}}"
          },
          "validationJmespathExpression": {
            "expression": "contains(uris, 'buildbarn://builds/farm/frontend')"
          }
        }
      },
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
      },
      "listenAddresses": [
        ":8982"
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
  "killOperationsAuthorizer": {
    "jmespathExpression": {
      "expression": "authenticationMetadata.public.role == 'operator'"
    }
  },
  "maximumMessageSizeBytes": 2097152,
  "modifyDrainsAuthorizer": {
    "jmespathExpression": {
      "expression": "authenticationMetadata.public.role == 'operator'"
    }
  },
  "platformQueueWithNoWorkersTimeout": "900s",
  "predeclaredPlatformQueues": [
    {
      "instanceNamePrefix": "",
      "platform": {
        "properties": []
      },
      "sizeClasses": [
        0
      ]
    }
  ],
  "synchronizeAuthorizer": {
    "allow": {}
  },
  "workerGrpcServers": [
    {
      "authenticationPolicy": {
        "tlsClientCertificate": {
          "clientCertificateAuthorities": importstr "authorities.pem",
          "metadataExtractionJmespathExpression": {
            "expression": "{\"public\": {\"role\": 'worker'}}"
          },
          "validationJmespathExpression": {
            "expression": "contains(uris, 'buildbarn://builds/farm/worker')"
          }
        }
      },
      "keepaliveEnforcementPolicy": {
        "minTime": "10s",
        "permitWithoutStream": true
      },
      "keepaliveParameters": {
        "maxConnectionAge": "0s",
        "maxConnectionAgeGrace": "0s",
        "maxConnectionIdle": "0s",
        "time": "10s",
        "timeout": "5s"
      },
      "listenAddresses": [
        ":8983"
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
  ]
}
