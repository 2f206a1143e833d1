// Command events receives CloudEvents with the SDK.
package main

import (
	"context"
	"log"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

func main() {
	c, err := cloudevents.NewClientHTTP(cloudevents.WithPort(8080))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(c.StartReceiver(context.Background(), func(e cloudevents.Event) (*cloudevents.Event, cloudevents.Result) {
		if err := e.Validate(); err != nil {
			return nil, cloudevents.NewHTTPResult(400, "%s", err)
		}
		if string(e.Data()) == "bad" {
			return nil, cloudevents.NewHTTPResult(422, "it is bad")
		}
		out := cloudevents.NewEvent()
		out.SetID("reply to " + e.ID())
		out.SetSource("/test")
		out.SetType("reply")
		return &out, firstError(out.SetData("text/plain", []byte(strings.ToUpper(string(e.Data()))+" "+e.Type())))
	}))
}

func firstError(err error) cloudevents.Result {
	if err != nil {
		return cloudevents.NewHTTPResult(500, "%s", err)
	}
	return cloudevents.ResultACK
}
