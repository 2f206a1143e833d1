package sender

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Stream is a reply that is read as its parts come. Read returns io.EOF only at the reply's end, and an *Error if the
// program fails in the middle. The caller reads it to the end, or closes it.
type Stream struct {
	ContentType string
	// Attempt counts from 1 how often a program got the message.
	Attempt int
	res     *http.Response
}

// Stream sends a message and returns its reply when its first part has come. A reply that is smaller or whole comes the
// same way. Each call is a request of its own, because a slow reader would hold up the other replies of a connection.
// The context ends the reply too; without a deadline it takes at most one minute.
func (s *Sender) Stream(ctx context.Context, m Message) (*Stream, error) {
	q := url.Values{"wait": {"true"}}
	if at, ok := ctx.Deadline(); ok {
		q.Set("timeout", min(max(time.Until(at), time.Millisecond), maxTimeout).String())
	}
	to, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	to.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Te", "trailers")
	for name, value := range map[string]string{
		"Content-Type": m.ContentType, "Traceparent": m.Trace, "Coracle-Deduplication-Id": m.ID, "Coracle-Message-Key": m.Key,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return nil, errorOf(res.StatusCode, text)
	}
	attempt, _ := strconv.Atoi(res.Header.Get("Coracle-Message-Attempt"))
	return &Stream{ContentType: res.Header.Get("Content-Type"), Attempt: attempt, res: res}, nil
}

// Read implements io.Reader.
func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.res.Body.Read(b)
	if err == nil {
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return n, &Error{
			Code: http.StatusBadGateway, Reason: "ReceiverLost", Message: "the connection broke in the reply: " + err.Error(),
		}
	}
	reason := s.res.Trailer.Get("Coracle-Message-Failure")
	if reason == "" {
		return n, io.EOF
	}
	e := &Error{
		Code: http.StatusInternalServerError, Reason: reason, Message: s.res.Trailer.Get("Coracle-Message-Error"),
	}
	switch reason {
	case "ReceiverLost":
		e.Code = http.StatusBadGateway
	case "HandlerTimeout":
		e.Code = http.StatusGatewayTimeout
	}
	return n, e
}

// Close implements io.Closer.
func (s *Stream) Close() error { return s.res.Body.Close() }
