package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/parts"
)

// SendOptions are the options of `coracle send`.
type SendOptions struct {
	// Target is pod/NAME or service/NAME.
	Target string
	// Payload is the message, unless File names a file ("-" is standard input).
	Payload, File string
	ContentType   string
	// Wait waits for the reply, up to Timeout; 0 means a minute.
	Wait    bool
	Timeout time.Duration
	// Delay is how long the message waits at least, Expire how long at most. They do not go with Batch.
	Delay, Expire time.Duration
	// ID is the sender's ID of the message. With Batch the messages get it with their number, from 1, after a hyphen.
	ID string
	// Key is the key whose messages are handled one at a time, in order.
	Key string
	// Trace is the traceparent (W3C Trace Context).
	Trace string
	// Batch sends each line as a message, all on one connection.
	Batch bool
	// Objects has each line of a Batch be a JSON object with id, key and data, or a CloudEvent.
	Objects bool
}

// Send sends a message. It prints the reply to out, or the ID of the accepted message to progress.
func (c cluster) Send(ctx context.Context, o SendOptions, in io.Reader, out, progress io.Writer) error {
	kind, name, ok := strings.Cut(o.Target, "/")
	resource := map[string]string{
		"pod":      "pods",
		"pods":     "pods",
		"po":       "pods",
		"service":  "services",
		"services": "services",
		"svc":      "services",
		"worker":   "services",
	}[kind]
	if !ok || resource == "" || name == "" || strings.Contains(name, "/") {
		hint := ""
		if !ok && name == "" && kind != "" {
			hint = fmt.Sprintf(": for a worker it is service/%s", kind)
		}
		return fmt.Errorf("%q is not pod/NAME or service/NAME%s", o.Target, hint)
	}
	base, _, err := rest.DefaultServerUrlFor(c.REST)
	if err != nil {
		return err
	}
	u := base.JoinPath("/api/v1/namespaces", c.Namespace, resource, name, "message")
	if o.Objects && (!o.Batch || o.ID != "" || o.ContentType != "") {
		return errors.New("--objects is for --batch, whose lines have an id and datacontenttype of their own: leave out " +
			"--id and --content-type")
	}
	if o.Batch && (o.Delay != 0 || o.Expire != 0) {
		return errors.New("--delay and --expire are for single messages, without --batch")
	}
	if o.Batch {
		return c.sendLines(ctx, o, u.String(), in, out, progress)
	}
	payload, err := o.payload(in)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.REST)
	if err != nil {
		return err
	}
	u.RawQuery = o.query().Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(string(payload)))
	if err != nil {
		return err
	}
	req.Header = o.headers(payload)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return printReply(res, out)
	}
	body, err := bounded.All(res.Body, workers.MaxPayload)
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusAccepted {
		how := map[bool]string{false: "accepted", true: "was accepted before with this id"}
		repeated := res.Header.Get(workers.HeaderDuplicate) != ""
		_, err = fmt.Fprintf(progress, "message %s %s\n", res.Header.Get(workers.HeaderID), how[repeated])
		return err
	}
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		if err := c.absent(ctx, &s); err != nil {
			return err
		}
		return fmt.Errorf("%s: %s", s.Reason, s.Message)
	}
	return fmt.Errorf("%s: %.1024s", res.Status, body)
}

func (o SendOptions) headers(payload []byte) http.Header {
	h := http.Header{}
	h.Set("Content-Type", o.ContentType)
	if o.ContentType == "" {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		if json.Valid(payload) {
			h.Set("Content-Type", "application/json")
		}
	}
	if o.Trace != "" {
		h.Set("Traceparent", o.Trace)
	}
	h.Set("Te", "trailers")
	return h
}

// printReply prints a reply as its parts come, and a newline if it does not end with one.
func printReply(res *http.Response, out io.Writer) error {
	last := &lastByte{Writer: out, b: '\n'}
	_, err := io.CopyBuffer(last, bounded.Reader(res.Body, workers.MaxReply), make([]byte, parts.Size))
	if last.b != '\n' {
		_, _ = io.WriteString(out, "\n")
	}
	if err != nil {
		return fmt.Errorf("the connection broke in the reply (%w); the message may have been handled", err)
	}
	if f := res.Trailer.Get(workers.HeaderFailure); f != "" {
		return fmt.Errorf("the reply broke off: %s: %s", f, res.Trailer.Get(workers.HeaderErrorText))
	}
	return nil
}

// lastByte remembers the last byte that was written.
type lastByte struct {
	io.Writer
	b byte
}

func (l *lastByte) Write(b []byte) (int, error) {
	n, err := l.Writer.Write(b)
	if n > 0 {
		l.b = b[n-1]
	}
	return n, err
}

func (o SendOptions) query() url.Values {
	q := url.Values{}
	if o.Wait {
		q.Set("wait", "true")
	}
	for name, text := range map[string]string{"id": o.ID, "key": o.Key} {
		if text != "" {
			q.Set(name, text)
		}
	}
	for name, d := range map[string]time.Duration{"timeout": o.Timeout, "delay": o.Delay, "expire": o.Expire} {
		if d != 0 {
			q.Set(name, d.String())
		}
	}
	return q
}

func (o SendOptions) payload(in io.Reader) ([]byte, error) {
	switch {
	case o.File == "":
		return []byte(o.Payload), nil
	case o.File == "-":
		return bounded.All(in, workers.MaxPayload)
	}
	return bounded.Configured(o.File, workers.MaxPayload)
}
