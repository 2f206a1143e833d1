// Package shim is the protocol between the agent and a pod's shim. A shim is a small process per pod
// (cmd/coracle-shim) that is the parent of the pod's containers, so that they outlive the agent.
//
// Its invariant: the shim writes a state to the bundle's state.json before it reports it, so that a client that lost
// the connection finds it there.
//
// A client connects to the shim's Unix socket, writes one Request as a frame of type FrameHead, and reads one
// Response frame. Then the connection is closed, except that "watch" continues with a Status per change, and "exec"
// and "attach" with frames in both directions.
package shim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Operations of a Request.
const (
	Start    = "start"    // start the container of Bundle unless it was started before
	Signal   = "signal"   // send Signal, to all processes if All
	Remove   = "remove"   // kill, release and remove
	Update   = "update"   // change Resources
	Stats    = "stats"    // return Usage
	Exec     = "exec"     // run an additional Process
	Attach   = "attach"   // attach to the first process's streams
	Watch    = "watch"    // return all states, then each change
	PIDNS    = "pidns"    // return PID of the first process of the pod's PID namespace
	Shutdown = "shutdown" // remove all containers and exit
)

// Request is a client's request. ID is the container's ID.
type Request struct {
	Op, ID    string
	Bundle    string                `json:",omitempty"`
	Signal    int                   `json:",omitempty"`
	All       bool                  `json:",omitempty"`
	Resources *specs.LinuxResources `json:",omitempty"`
	Args      []string              `json:",omitempty"`
	TTY       bool                  `json:",omitempty"`
	// Users is the path of the user namespace that owns the PID namespace; empty means the host's.
	Users string `json:",omitempty"`
	// In, Out and Err are the streams that the client connects.
	In, Out, Err bool `json:",omitempty"`
}

// Response answers a Request.
type Response struct {
	// Error is empty on success. Code is CodeNotFound, CodeNotRunning or empty.
	Error, Code string         `json:",omitempty"`
	Status      *Status        `json:",omitempty"`
	Usage       *runtime.Stats `json:",omitempty"`
	PID         int            `json:",omitempty"`
}

// Codes of errors.
const (
	CodeNotFound   = "not-found"
	CodeNotRunning = "not-running"
)

var (
	// ErrNotFound is returned for a container that the shim does not know.
	ErrNotFound = errors.New("the shim does not know this container")
	// ErrNotRunning is returned for a container that is not running.
	ErrNotRunning = errors.New("the container does not run")
)

// Status is a container's state, and the content of the bundle's state.json.
type Status struct {
	ID                    string
	State                 string // created, running or exited; "" in a watch: removed
	PID                   int    `json:",omitempty"`
	StartedAt, FinishedAt time.Time
	ExitCode, Signal      int    `json:",omitempty"`
	OOMKilled             bool   `json:",omitempty"`
	Message               string `json:",omitempty"`
}

// Bundle is the content of a container's bundle.json.
type Bundle struct {
	ID   string
	Spec specs.Spec
	// Lower are the image's layer directories, uppermost first. Upper, Work and Rootfs are in the bundle.
	Lower []string
	// User is the image's user ("name", "uid", "uid:group", ...); UID and GID override it.
	User         string
	UID, GID     *int64
	Groups       []int64
	StrictGroups bool

	LogPath               string
	TTY, Stdin, StdinOnce bool

	// Users is the user namespace that the container joins, nil for the host's. It maps the owners of the root file
	// system and of bind mounts with the option MapIDs.
	Users *Users `json:",omitempty"`
}

// Users is a user namespace. First is the outside ID of its root, Count the number of mapped IDs.
type Users struct {
	Path         string
	First, Count uint32
}

// MapIDs is the bind mount option for mapping owners by Bundle.Users.
const MapIDs = "idmap"

// BundleFile returns the file of a container's Bundle, by the container's directory.
func BundleFile(dir string) string { return filepath.Join(dir, "bundle.json") }

// StateFile returns the file of a container's state.
func StateFile(dir string) string { return filepath.Join(dir, "state.json") }

// Upper returns the directory of what a container writes: the overlay's upper directory.
func Upper(dir string) string { return filepath.Join(dir, "upper") }

// Work returns the overlay's work directory.
func Work(dir string) string { return filepath.Join(dir, "work") }

// Rootfs returns the mount point of a container's root.
func Rootfs(dir string) string { return filepath.Join(dir, "rootfs") }

// Runtime returns libcontainer's directory.
func Runtime(dir string) string { return filepath.Join(dir, "run") }

// ReadJSON reads a JSON file into value.
func ReadJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Types of frames.
const (
	FrameHead     = 'h' // JSON: Request, Response or Status
	FrameIn       = '0' // to the process; an empty frame closes its stdin
	FrameOut      = '1'
	FrameErr      = '2'
	FrameResize   = 'r' // two uint16: width, height
	FrameExitCode = 'x' // one uint32; the last frame
)

// maxFrame limits the memory for a frame, in bytes.
const maxFrame = 4 << 20

// WriteFrame writes a frame with a single Write.
func WriteFrame(w io.Writer, kind byte, data []byte) error {
	frame := make([]byte, 5+len(data))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(data)))
	copy(frame[5:], data)
	_, err := w.Write(frame)
	return err
}

// ReadFrame reads one frame. It refuses frames of more than maxFrame bytes.
func ReadFrame(r io.Reader) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes is longer than %d", n, maxFrame)
	}
	data = make([]byte, n)
	_, err = io.ReadFull(r, data)
	return head[0], data, err
}

// WriteHead writes a value as JSON in a frame of type FrameHead.
func WriteHead(w io.Writer, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return WriteFrame(w, FrameHead, data)
}

// ReadHead reads a value from a frame of type FrameHead.
func ReadHead(r io.Reader, value any) error {
	kind, data, err := ReadFrame(r)
	if err != nil {
		return err
	}
	if kind != FrameHead {
		return fmt.Errorf("frame of type %q instead of a head frame", kind)
	}
	return json.Unmarshal(data, value)
}
