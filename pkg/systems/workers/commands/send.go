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
	// Batch sends each line as a message, all on one connection.
	Batch bool
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
	req.Header.Set("Content-Type", o.ContentType)
	if o.ContentType == "" {
		req.Header.Set("Content-Type", "text/plain; charset=utf-8")
		if json.Valid(payload) {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := bounded.All(res.Body, workers.MaxPayload)
	if err != nil {
		return err
	}
	switch res.StatusCode {
	case http.StatusOK:
		if _, err := out.Write(body); err != nil {
			return err
		}
		if len(body) > 0 && body[len(body)-1] != '\n' {
			_, err = io.WriteString(out, "\n")
		}
		return err
	case http.StatusAccepted:
		how := map[bool]string{false: "accepted", true: "was accepted before with this id"}
		repeated := res.Header.Get(workers.HeaderDuplicate) != ""
		_, err = fmt.Fprintf(progress, "message %s %s\n", res.Header.Get(workers.HeaderID), how[repeated])
		return err
	}
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		if err := c.absent(&s); err != nil {
			return err
		}
		return fmt.Errorf("%s: %s", s.Reason, s.Message)
	}
	return fmt.Errorf("%s: %.1024s", res.Status, body)
}

// absent returns an error with a remedy if the response says that a pod, service, worker or message does not exist,
// else nil.
func (c cluster) absent(s *metav1.Status) error {
	if s.Reason != metav1.StatusReasonNotFound || s.Details == nil || s.Details.Name == "" {
		return nil
	}
	name := s.Details.Name
	if worker, id, ok := strings.Cut(name, "/queue/"); ok {
		return fmt.Errorf("worker %s has no message %s: `coracle queue %[1]s list -n %[3]s` lists its messages", worker, id,
			c.Namespace)
	}
	switch s.Details.Kind {
	case "services":
		return fmt.Errorf("there is no service %s in namespace %s: `coracle get workers -A` lists workers, and a worker's "+
			"service has its name", name, c.Namespace)
	case "pods":
		return fmt.Errorf("there is no pod %s in namespace %s: `coracle get pods -A` lists pods", name, c.Namespace)
	case "workers":
		return fmt.Errorf("there is no worker %s in namespace %s: `coracle get workers -A` lists workers", name,
			c.Namespace)
	}
	return nil
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
