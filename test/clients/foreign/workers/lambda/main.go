// Command lambda is a function written for AWS Lambda.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type event struct{ Name string }

type reply struct {
	Greeting, RequestID string
	Left                bool // whether more than a second remains until the deadline
}

func main() {
	lambda.Start(func(ctx context.Context, e event) (reply, error) {
		switch e.Name {
		case "":
			return reply{}, errors.New("nobody is there")
		case "panic":
			panic("at the disco")
		}
		c, _ := lambdacontext.FromContext(ctx)
		at, ok := ctx.Deadline()
		return reply{fmt.Sprint("Hello ", e.Name), c.AwsRequestID, ok && time.Until(at) > time.Second}, nil
	})
}
