package commands

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

// linesAhead bounds the sent lines whose outcome is not printed yet.
const linesAhead = 1024

type line struct {
	outcome chan error // has a buffer of one
	// The outcome.
	reply     []byte
	duplicate bool
}

// sendLines sends each non-empty line as a message on one connection, as it is read, and prints the replies or IDs in
// the order of the lines.
func (c cluster) sendLines(ctx context.Context, o SendOptions, url string, in io.Reader,
	out, progress io.Writer) error {
	switch o.File {
	case "":
		in = strings.NewReader(o.Payload)
	case "-":
	default:
		file, err := os.Open(o.File)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	config := rest.CopyConfig(c.REST)
	config.NextProtos = []string{"http/1.1"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	s := sender.New(client, url)
	defer s.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent, failed := make(chan *line, linesAhead), make(chan error, 1)
	go func() {
		defer close(sent)
		failed <- o.start(ctx, s, in, sent)
	}()
	if err := printLines(sent, out, progress, cancel); err != nil {
		return err
	}
	return <-failed
}

func (o SendOptions) start(ctx context.Context, s *sender.Sender, in io.Reader, sent chan<- *line) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			n--
			continue
		}
		m, err := o.message(lines.Bytes(), n)
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		l := &line{outcome: make(chan error, 1)}
		of, end := ctx, context.CancelFunc(func() {})
		if o.Timeout > 0 {
			of, end = context.WithTimeout(ctx, o.Timeout)
		}
		_, err = s.Start(of, m, o.Wait, func(r sender.Reply, err error) {
			end()
			l.reply, l.duplicate = r.Payload, r.Duplicate
			l.outcome <- err
		})
		if err != nil {
			end()
			return fmt.Errorf("line %d was not sent: %w", n, err)
		}
		select {
		case sent <- l:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line has more than %d bytes", maxLine)
	}
	return lines.Err()
}

// maxLine bounds a line: base64 and JSON make a message longer.
const maxLine = 2 * workers.MaxPayload

// message returns the message in line n.
func (o SendOptions) message(text []byte, n int) (m sender.Message, err error) {
	m = sender.Message{Payload: text, ContentType: cmp.Or(o.ContentType, "text/plain; charset=utf-8"), Key: o.Key,
		Trace: o.Trace}
	switch {
	case o.Objects:
		err = o.object(text, &m)
	case o.ID != "":
		m.ID = o.ID + "-" + strconv.Itoa(n)
	}
	if err == nil && len(m.Payload) > workers.MaxPayload {
		err = fmt.Errorf("a message has at most %d bytes", workers.MaxPayload)
	}
	return m, err
}

// object reads the message in a line of --objects. As over HTTP, the ID of a CloudEvent begins with its source, and is
// not used if the sender waits.
func (o SendOptions) object(text []byte, m *sender.Message) error {
	var e event.Event
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf(`not a JSON object like {"id": "order-17", "key": "customer-4", "data": {"total": 3}}: %w`, err)
	}
	if e.Source == "" && e.Data == nil && e.Binary == nil {
		return errors.New("the object has neither data nor data_base64, and is not a CloudEvent")
	}
	var plain string
	if e.DataContentType == "" && json.Unmarshal(e.Data, &plain) == nil && e.Source == "" {
		e.DataContentType = "text/plain; charset=utf-8"
	}
	m.Payload, m.ContentType = e.Payload()
	switch {
	case e.Source == "":
		m.ID = e.ID
	case !o.Wait:
		m.ID = e.Source + " " + e.ID
	}
	for _, key := range []*string{e.PartitionKey, e.Key} {
		if key != nil {
			m.Key = *key
		}
	}
	m.Trace = cmp.Or(e.Trace, m.Trace)
	return nil
}

// printLines prints replies or the IDs of messages to out, and failures to progress. It calls stop if a write to out
// fails.
func printLines(sent <-chan *line, out, progress io.Writer, stop func()) error {
	w := bufio.NewWriter(out)
	all, good, duplicates := 0, 0, 0
	var failed error
	for l := range sent {
		all++
		err := l.wait(w)
		var refused *sender.Error
		switch {
		case errors.As(err, &refused):
			_, _ = fmt.Fprintf(progress, "line %d: %s: %s\n", all, refused.Reason, refused.Message)
			continue
		case err != nil:
			_, _ = fmt.Fprintf(progress, "line %d: %v\n", all, err)
			continue
		}
		if l.duplicate {
			duplicates++
		}
		if good++; failed == nil {
			if _, failed = fmt.Fprintf(w, "%s\n", strings.TrimSuffix(string(l.reply), "\n")); failed != nil {
				stop()
			}
		}
	}
	if failed == nil {
		failed = w.Flush()
	}
	if failed != nil {
		return failed
	}
	if good < all {
		return fmt.Errorf("%d of %d messages failed", all-good, all)
	}
	before := ""
	if duplicates > 0 {
		before = fmt.Sprintf(", %d of them before", duplicates)
	}
	_, err := fmt.Fprintf(progress, "%d messages accepted%s\n", good, before)
	return err
}

// wait waits for the outcome. Before it blocks, it flushes w.
func (l *line) wait(w *bufio.Writer) error {
	select {
	case err := <-l.outcome:
		return err
	default:
	}
	_ = w.Flush() // a later write reports the failure
	return <-l.outcome
}
