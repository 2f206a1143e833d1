// Package frame encodes messages and their answers on long-lived connections, without an HTTP request for each:
//
//	length of head (4 bytes) length of payload (4) head payload
//
// A head has a kind (1 byte); ID, content type, trace, dead letter and error type (each a uvarint length and the
// text); attempt (uvarint); deadline (uvarint, in milliseconds); and, unless both are empty, the sender's ID and the
// key, which former versions ignore. Its invariant: Read allocates no memory for a length over the limit.
//
// A program that handles messages connects to the node's agent, see Protocol. A sender connects to the API server, see
// SendProtocol.
package frame

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// Path, Protocol and HeaderSlots open the connection of a program: GET Path with Upgrade: Protocol. HeaderSlots is
	// the number of messages that the program can handle at once. The agent sends that many, and one more for each
	// answer. A program sends Last when it wants no more. The agent sends Last after its last message, then or when
	// the pod terminates. Answers are accepted until the connection is closed, also on another connection than their
	// message's.
	Path        = "/v1/messages"
	Protocol    = "coracle-messages-1"
	HeaderSlots = "Coracle-Message-Slots"
	// SendProtocol is the Upgrade protocol of a sender, which posts to the message subresource of a pod or service.
	// HeaderSlots of the response bounds the unanswered messages; the server reads no more than that. The sender
	// chooses the IDs. It gets one answer to each Request and Note, in any order. It sends Last after its last message;
	// the API server answers the others, sends Last and closes the connection. If the API server sends Last first, as
	// it does every few minutes to authenticate clients again, the sender uses another connection for further messages.
	SendProtocol = "coracle-send-1"

	// MaxPayload and MaxHead bound a payload and a head, in bytes. MaxMessage bounds the payload of a Message, which may
	// be a batch.
	MaxPayload = 1 << 20
	MaxHead    = 16 << 10
	MaxMessage = 7 << 20
)

// Kind is the type of a frame.
type Kind byte

// The kinds of frames. The agent sends Message, Refused and Last, the program Reply, Failure, Sent and Last. A sender
// sends Request, Note, Cancel and Last, and gets Reply, Accepted, Failure and Last.
const (
	Message Kind = 'm'
	// Reply and Failure answer the message with their ID. The payload of a Failure is its text or, for a sender, a
	// Status in JSON.
	Reply   Kind = 'r'
	Failure Kind = 'f'
	// Sent means that the program has sent its reply in parts, over the Runtime API, and takes another message.
	Sent Kind = 's'
	// Refused means that the agent could not use an answer. Its payload is the reason.
	Refused Kind = 'x'
	// Last is sent after the last message.
	Last Kind = 'l'
	// Request is a message whose sender waits for the reply until the deadline; 0 means one minute.
	Request Kind = 'q'
	// Note is a message without a reply. Accepted means that the Note is in a queue; its payload is the message's ID
	// there.
	Note     Kind = 'n'
	Accepted Kind = 'a'
	// Repeated answers a Note with a DedupID that an earlier message had, whose ID is the payload.
	Repeated Kind = 'd'
	// Cancel means that the sender no longer waits for the reply to a Request, which is answered nevertheless.
	Cancel Kind = 'c'
)

// most bounds the payload of a frame, in bytes.
func (k Kind) most() int {
	if k == Message {
		return MaxMessage
	}
	return MaxPayload
}

// Head describes a frame. Kind determines which fields are used.
type Head struct {
	Kind                                          Kind
	ID, ContentType, Trace, DeadLetter, ErrorType string
	Attempt                                       int32
	// Deadline is in milliseconds: since 1970 in a Message, from now on in a Request.
	Deadline int64
	// DedupID is the sender's ID of a Note.
	DedupID string
	// OrderKey is the key of a Request or Note.
	OrderKey string
}

// ErrMalformed means that the input is not a frame.
var ErrMalformed = errors.New("malformed frame")

// Write writes a frame. It does not flush w.
func Write(w *bufio.Writer, h *Head, payload []byte) error {
	size := 1 + 9*binary.MaxVarintLen64 + len(h.DedupID) + len(h.OrderKey)
	for _, s := range h.texts() {
		size += len(*s)
	}
	if size > MaxHead || len(payload) > h.Kind.most() {
		return fmt.Errorf("frame of %d and %d bytes is too large", size, len(payload))
	}
	b := make([]byte, 8, 8+size)
	b = append(b, byte(h.Kind))
	for _, s := range h.texts() {
		b = append(binary.AppendUvarint(b, uint64(len(*s))), *s...)
	}
	b = binary.AppendUvarint(b, uint64(h.Attempt))
	b = binary.AppendUvarint(b, uint64(h.Deadline))
	if h.DedupID != "" || h.OrderKey != "" {
		b = append(binary.AppendUvarint(b, uint64(len(h.DedupID))), h.DedupID...)
		b = append(binary.AppendUvarint(b, uint64(len(h.OrderKey))), h.OrderKey...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-8))
	binary.BigEndian.PutUint32(b[4:], uint32(len(payload)))
	if _, err := w.Write(b); err != nil {
		return err
	}
	_, err := w.Write(payload)
	return err
}

func (h *Head) texts() [5]*string {
	return [5]*string{&h.ID, &h.ContentType, &h.Trace, &h.DeadLetter, &h.ErrorType}
}

// Read reads the head of the next frame. Its payload is the next size bytes of r. Read returns io.EOF at the end.
func Read(r *bufio.Reader) (h Head, size int, err error) {
	var lengths [8]byte
	if _, err := io.ReadFull(r, lengths[:]); err != nil {
		return h, 0, err
	}
	n, size := int(binary.BigEndian.Uint32(lengths[:])), int(binary.BigEndian.Uint32(lengths[4:]))
	if n < 1 || n > MaxHead || size > MaxMessage {
		return h, 0, ErrMalformed
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return h, 0, err
	}
	if h.Kind, b = Kind(b[0]), b[1:]; size > h.Kind.most() {
		return h, 0, ErrMalformed
	}
	number := func() uint64 {
		v, used := binary.Uvarint(b)
		if used <= 0 {
			err = ErrMalformed
			return 0
		}
		b = b[used:]
		return v
	}
	text := func(s *string) {
		n := number()
		if n > uint64(len(b)) {
			n, err = 0, ErrMalformed
		}
		*s, b = string(b[:n]), b[n:]
	}
	for _, s := range h.texts() {
		text(s)
	}
	h.Attempt, h.Deadline = int32(number()), int64(number())
	if len(b) > 0 {
		text(&h.DedupID)
		text(&h.OrderKey)
	}
	return h, size, err
}

// Buffered reports whether r has buffered a whole frame, so that reading it does not block.
func Buffered(r *bufio.Reader) bool {
	if r.Buffered() < 8 {
		return false
	}
	b, err := r.Peek(8)
	return err == nil &&
		uint64(r.Buffered()) >= 8+uint64(binary.BigEndian.Uint32(b))+uint64(binary.BigEndian.Uint32(b[4:]))
}
