// Command lambda is a function written for AWS Lambda.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	lambda.Start(func(ctx context.Context, e event) (any, error) {
		switch e.Name {
		case "stream", "stream and fail":
			in, out := io.Pipe()
			go func() {
				for _, part := range []string{"one ", "two ", "three"} {
					_, _ = io.WriteString(out, part)
					time.Sleep(100 * time.Millisecond) // parts that are apart
				}
				if e.Name != "stream" {
					_ = out.CloseWithError(errors.New("it ran out of words"))
				}
				_ = out.Close()
			}()
			return in, nil
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
