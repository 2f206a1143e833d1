// Package queue holds the messages that wait for a worker's pods. Queues is the interface, Local keeps them in the
// server's process and, if they are durable, in a database in its data directory or in a stream of NATS servers.
//
// Its invariants: a message has one state at a time (waiting, delayed, blocked, in flight, dead). Append returns no
// error for a durable message only after the database is synced or NATS has answered, and the message stays there until
// Acknowledge, Purge or a bound on dead messages removes it. The bounds are checked before a message takes memory or
// disk.
//
// The database is bbolt, which etcd links: 90,000 synced messages a second in groups of 256 and 7,600 in groups of 32
// on two loaded cores. A log reached 168,000 and 24,600, but needs code for torn records, compaction and reading back.
// Claims need no lease: they belong to the process, and return to the queue when it starts again.
package queue

import (
	"errors"
	"time"
)

// Key names a queue: the queue of a Worker, or of a pod without one.
type Key struct{ Namespace, Worker, Pod string }

// String returns the key for logs and errors.
func (k Key) String() string {
	if k.Worker != "" {
		return k.Namespace + "/" + k.Worker
	}
	return k.Namespace + "/pod/" + k.Pod
}

// State is the state of a message.
type State string

// States. A delayed message waits for the end of its back-off, a blocked one for earlier messages with its OrderKey.
const (
	Waiting  State = "waiting"
	Delayed  State = "delayed"
	Blocked  State = "blocked"
	InFlight State = "in flight"
	Dead     State = "dead"
	// ended is the state of a message that is gone while its DedupID is remembered.
	ended State = "ended"
)

// Message is a message in a queue.
type Message struct {
	ID string
	// DedupID is the sender's ID of the message, or empty. Append refuses another message with it for a Window.
	DedupID string `json:",omitempty"`
	// OrderKey, unless empty, has the messages with it claimed one at a time, in the order of their arrival: the next one
	// when the one before it is acknowledged, removed or dead.
	OrderKey string `json:",omitempty"`
	// Target is the only pod that may get the message; "" means any pod of the queue.
	Target                         string
	ContentType, Trace, DeadLetter string
	// Hops counts the workers whose replies led to the message.
	Hops int `json:",omitempty"`
	// Payload is set by Claim, Overdue and Find.
	Payload []byte
	// Durable messages are in the database, or in NATS.
	Durable          bool
	Arrived, Expires time.Time
	// Due is when a delayed message may be claimed; zero means at once.
	Due time.Time `json:",omitzero"`

	// The queue sets the following fields. Attempts counts the attempts to have a program handle the message, Error
	// describes the last failed one, and Seq orders the messages by arrival.
	State    State
	Attempts int32
	Error    string
	Seq      uint64
	Size     int
}

// Limits bound the messages that wait in a queue. Beyond them, Append returns ErrFull.
type Limits struct{ Messages int }

// Errors of Append.
var (
	ErrFull      = errors.New("the queue is full")
	ErrNoRoom    = errors.New("the server's space for messages is used up")
	ErrNoDisk    = errors.New("this server has no data directory, so it takes no messages with AtLeastOnce")
	ErrDiskFull  = errors.New("the server's disk is nearly full")
	ErrClosed    = errors.New("the server stops")
	ErrDuplicate = errors.New("the queue has a message with this ID")
	// ErrUnavailable means that a store outside this server takes no messages now.
	ErrUnavailable = errors.New("the queue cannot be written now")
	ErrTooLarge    = errors.New("the message is too large for the NATS servers, which take at most")
)

// DuplicateError means that the queue accepted a message with the same DedupID before, and took this one for the same.
type DuplicateError struct {
	// ID is the ID of the message that was accepted.
	ID string
}

func (e *DuplicateError) Error() string { return "a repetition of message " + e.ID }

// Result says what happens to a claimed message.
type Result struct {
	// Untouched means that no program got the message: the attempt does not count.
	Untouched bool
	Delay     time.Duration
	Error     string
	Dead      bool
}

// Depth counts the messages of a queue by their state. Waiting includes Delayed, and Delayed includes blocked messages.
type Depth struct {
	Waiting, Delayed, InFlight, Dead int
	// Bytes counts the payloads of waiting messages.
	Bytes int64
	// Oldest is when the first waiting message arrived; zero if none waits.
	Oldest time.Time
	// Failure is why the queue cannot take durable messages now; nil if it can.
	Failure error
}

// Queues holds the messages of all queues. It is safe for concurrent use.
type Queues interface {
	// Append adds messages in order. The returned function blocks until durable messages are on disk, and returns an
	// error for each message, nil if the queue has accepted it. For a DuplicateError, the message that was accepted
	// before is on disk too. Append takes over the payloads.
	Append(k Key, l Limits, list []Message) (accepted func() []error)
	// Claim returns the message that has waited longest among those that the pod may get, and counts an attempt.
	Claim(k Key, pod string) (Message, bool)
	// Overdue returns the messages that have expired while they waited, and claims them without counting an attempt.
	Overdue(k Key) []Message
	// Acknowledge removes a claimed message.
	Acknowledge(k Key, id string)
	// Return puts a claimed message back, to its former place or, after a delay or as dead, elsewhere. It returns the
	// dead messages that it removed to keep their bound.
	Return(k Key, id string, r Result) []Message
	// Withdraw removes a message. It returns false if the message is in flight or not there.
	Withdraw(k Key, id string) bool
	// Retarget lets any pod have the durable messages for the pod, which is gone, and claims and returns the others.
	Retarget(k Key, pod string) []Message
	// Redrive makes dead messages wait again, as if they had just arrived. An empty ID means all of them. It returns
	// their number.
	Redrive(k Key, id string, expires time.Time) int
	// Purge removes the messages that are not in flight, or only the dead ones, and returns their number. Their IDs are
	// passed to removed.
	Purge(k Key, dead bool, removed func(id string)) int
	// List returns up to limit messages with the state, or with any if state is "", after the one with the sequence
	// number. They have no payload, and the order of their arrival.
	List(k Key, state State, after uint64, limit int) []Message
	// Find returns a message with its payload.
	Find(k Key, id string) (Message, bool)
	Depth(k Key) Depth
	// Place has the queue's durable messages kept in the stream with the ID, which this process alone writes from now on
	// until another one does the same. The returned function waits until its messages are in the queue, and returns why
	// they are not. Repeating it is safe.
	Place(k Key, stream string) (ready func() error)
	// Discard forgets the DedupIDs and removes the stream with its messages, if Place named one.
	Discard(k Key)
	// Next returns when a delayed message becomes due or a waiting one expires; zero means never.
	Next(k Key) time.Time
	// Keys returns the queues with messages.
	Keys() []Key
}
