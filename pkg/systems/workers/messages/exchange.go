package messages

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// exchange is a connection with a program for messages and answers in frames (package frame).
type exchange struct {
	r     *receiver
	conn  net.Conn
	in    *bufio.Reader
	out   *bufio.Writer
	taker *taker
	// refused holds answers to messages that are not in flight. When it is full, further ones are not reported.
	refused chan frame.Head
}

// exchange serves frames to a program until either side closes the connection.
func (r *receiver) exchange(w http.ResponseWriter, req *http.Request) {
	if !r.pulls(w) {
		return
	}
	most := int(r.queue.config.Concurrency)
	slots, err := strconv.Atoi(req.Header.Get(frame.HeaderSlots))
	if !strings.EqualFold(req.Header.Get("Upgrade"), frame.Protocol) || err != nil || slots < 0 {
		w.Header().Set("Upgrade", frame.Protocol)
		reject(w, http.StatusUpgradeRequired, "UpgradeRequired", "this path serves only %s", frame.Protocol)
		return
	}
	if !r.m.begin() {
		reject(w, http.StatusServiceUnavailable, "Unavailable", "the node's agent stops")
		return
	}
	defer r.m.wg.Done()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(r.ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Time{})
	x := &exchange{
		r:       r,
		conn:    conn,
		in:      buffered.Reader,
		out:     bufio.NewWriterSize(conn, 16<<10),
		taker:   r.queue.newTaker(most),
		refused: make(chan frame.Head, most),
	}
	_, _ = x.out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + frame.Protocol +
		"\r\n\r\n")
	var writing sync.WaitGroup
	writing.Add(1)
	stop := make(chan struct{})
	go func() {
		defer writing.Done()
		x.write(stop)
	}()
	r.queue.want(x.taker, min(slots, most))
	x.read()
	r.queue.noMore(x.taker)
	close(stop)
	_ = conn.Close()
	writing.Wait()
}

// write sends messages until the taker ends, and then frame.Last. It sends refusals until stop is closed.
func (x *exchange) write(stop <-chan struct{}) {
	got := x.taker.got
	var sent []*entry // since the last flush
	fail := func() {
		_ = x.conn.Close()
		for _, e := range sent {
			x.r.queue.resolveEntry(e, Outcome{
				Failure: workers.ReceiverLost, Text: "the program's connection broke while it got the message",
			})
		}
		x.r.queue.noMore(x.taker)
		for e := range x.taker.got {
			x.r.queue.giveBack(e)
		}
	}
	flush := func() bool {
		_ = x.conn.SetWriteDeadline(time.Now().Add(bodyTime))
		if x.out.Flush() != nil {
			fail()
			return false
		}
		sent = sent[:0]
		return true
	}
	if !flush() {
		return
	}
	for {
		var err error
		select {
		case e, ok := <-got:
			if !ok {
				got, err = nil, frame.Write(x.out, &frame.Head{Kind: frame.Last}, nil)
				break
			}
			sent = append(sent, e)
			err = frame.Write(x.out,
				&frame.Head{Kind: frame.Message, ID: e.ID, ContentType: e.ContentType, Trace: e.Trace, DeadLetter: e.DeadLetter,
					Attempt: e.Attempt, Deadline: x.r.deadline(e).UnixMilli()}, e.payload.data)
		case head := <-x.refused:
			text := head.ErrorType
			head.ErrorType = ""
			err = frame.Write(x.out, &head, []byte(text))
		case <-stop:
			fail()
			return
		}
		if err != nil {
			fail()
			return
		}
		if len(got) == 0 && len(x.refused) == 0 && !flush() {
			return
		}
	}
}

// read reads answers until the connection ends.
func (x *exchange) read() {
	for {
		h, size, err := frame.Read(x.in)
		if err != nil {
			return
		}
		if h.Kind == frame.Last {
			x.r.queue.noMore(x.taker)
			continue
		}
		if h.Kind == frame.Sent && size == 0 {
			x.r.queue.want(x.taker, 1)
			continue
		}
		if h.Kind != frame.Reply && h.Kind != frame.Failure {
			return
		}
		o, ok := x.answer(&h, size)
		if !ok {
			return
		}
		if !x.r.queue.resolve(h.ID, o) {
			select {
			case x.refused <- frame.Head{
				Kind:      frame.Refused,
				ID:        clip(h.ID, 64),
				ErrorType: "no message with this ID is being handled: it has expired, or was answered before",
			}:
			default:
			}
		}
		x.r.queue.want(x.taker, 1)
	}
}

// answer reads the payload of an answer. ok is false if the connection broke.
func (x *exchange) answer(h *frame.Head, size int) (o Outcome, ok bool) {
	if x.in.Buffered() < size {
		_ = x.conn.SetReadDeadline(time.Now().Add(bodyTime))
		defer func() { _ = x.conn.SetReadDeadline(time.Time{}) }()
	}
	p, err := x.r.bytes.read(x.in, int64(size))
	switch {
	case errors.Is(err, errNoMemory):
		_, err = io.CopyN(io.Discard, x.in, int64(size))
		return Outcome{Failure: workers.HandlerFailed, ErrorType: "NoMemory", Text: errNoMemory.Error()}, err == nil
	case err != nil:
		return o, false
	case h.Kind == frame.Failure:
		defer p.release()
		return Outcome{
			Failure:   workers.HandlerFailed,
			ErrorType: clip(h.ErrorType, 256),
			Text:      clip(string(p.data), maxErrorText),
		}, true
	}
	return Outcome{body: p, ContentType: clip(h.ContentType, 256)}, true
}
