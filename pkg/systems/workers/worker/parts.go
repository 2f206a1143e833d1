package worker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

// parts sends a reply in parts, in the body of a request of its own (AWS Lambda's response streaming).
type parts struct {
	client *http.Client
	url    string
	body   *io.PipeWriter // nil until the reply begins
	sent   sync.WaitGroup
	err    error
}

// Stream begins a reply in parts, of up to 256 MiB. Each Write passes on a part, and blocks while the sender is slow.
// If no sender waits, the parts are dropped. What the handler returns is the last part; with its error the sender
// learns that the reply is incomplete, and the message is delivered again only if the sender has got nothing yet. The
// type of the content is application/octet-stream if it is empty. A second call continues the same reply.
func (m *Message) Stream(contentType string) io.Writer {
	p := m.parts
	switch {
	case p == nil: // the message does not come from Serve
		return io.Discard
	case p.begun():
		return p.body
	}
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	in, out := io.Pipe()
	p.body = out
	p.sent.Go(func() {
		p.err = p.send(in, contentType)
		_ = in.CloseWithError(errors.Join(errors.New("the reply is not taken any more"), p.err))
	})
	return out
}

// body is a reply whose handler's error becomes the trailers.
type body struct {
	*io.PipeReader
	trailer http.Header
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.PipeReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		kind, text := errorType(err), err.Error()
		if kind == "" {
			kind = "HandlerFailed"
		}
		b.trailer.Set(errorTypeTrailer, kind)
		b.trailer.Set(errorBodyTrailer, base64.StdEncoding.EncodeToString([]byte(text[:min(len(text), maxTrailer)])))
		err = io.EOF
	}
	return n, err
}

// Trailers of a reply that the handler does not complete.
const (
	errorTypeTrailer = "Lambda-Runtime-Function-Error-Type"
	errorBodyTrailer = "Lambda-Runtime-Function-Error-Body"
	maxTrailer       = 2 << 10 // bytes of an error's text
)

func (p *parts) begun() bool { return p != nil && p.body != nil }

func (p *parts) send(in *io.PipeReader, contentType string) error {
	trailer := http.Header{errorTypeTrailer: nil, errorBodyTrailer: nil}
	// The agent ends the request with the message's attempt.
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url, body{in, trailer})
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Lambda-Runtime-Function-Response-Mode", "streaming")
	req.Trailer = trailer
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
	if res.StatusCode != http.StatusAccepted {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return nil
}

// end sends the last part and the handler's error, and waits until the agent has the reply.
func (p *parts) end(last []byte, failed error) {
	if failed == nil && len(last) > 0 {
		_, _ = p.body.Write(last)
	}
	_ = p.body.CloseWithError(failed)
	p.sent.Wait()
	if p.err != nil {
		fmt.Fprintln(os.Stderr, "worker: a reply in parts was not sent:", p.err)
	}
}
