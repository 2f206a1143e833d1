// Command sqs is a function written for AWS Lambda with an SQS queue that reports partial failures. It appends the
// messages that it gets to the file handled beside it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

func main() { lambda.Start(handle) }

func handle(_ context.Context, e events.SQSEvent) (r events.SQSEventResponse, err error) {
	dir := filepath.Dir(os.Args[0])
	out, err := os.OpenFile(filepath.Join(dir, "handled"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return r, err
	}
	defer out.Close()
	fmt.Fprintln(out, "batch", len(e.Records))
	poisoned := false
	for i := range e.Records {
		m := &e.Records[i]
		attempt := m.Attributes["ApproximateReceiveCount"]
		fmt.Fprintln(out, m.Body, attempt)
		switch {
		case m.Body == "poison" && attempt == "1":
			poisoned = true
		case m.Body == "fails", m.Body == "twice" && attempt == "2":
			r.BatchItemFailures = append(r.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: m.MessageId})
		case m.Body == "kill" && os.Mkdir(filepath.Join(dir, "killed"), 0o755) == nil:
			awaitKill()
		}
	}
	if poisoned {
		return r, errors.New("a poisoned batch")
	}
	return r, nil
}

// awaitKill waits until the server has gone.
func awaitKill() {
	for {
		c, err := net.Dial("tcp", os.Getenv("AWS_LAMBDA_RUNTIME_API"))
		if err != nil {
			return
		}
		_ = c.Close()
		time.Sleep(10 * time.Millisecond)
	}
}
