// The programs of workers that are written with other people's libraries, whose modules Coracle does not depend on.
module github.com/coracle-dev/coracle/test/clients/foreign/workers

go 1.26

require (
	github.com/aws/aws-lambda-go v1.55.1
	github.com/cloudevents/sdk-go/v2 v2.16.2
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
)
