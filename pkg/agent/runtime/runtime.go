// Package runtime is what the node agent asks of whatever runs its
// containers. The subpackage containerd runs real ones; the subpackage fake
// keeps them in memory, for the agent's own tests.
//
// It may import nothing of Coracle. Its invariant: the runtime's state is the
// truth. An agent that restarts learns everything from List; containers
// outlive both the agent and the server.
package runtime

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"
)

var (
	// ErrNotFound is returned for a container or an image that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned by Create for a container that exists already.
	ErrExists = errors.New("already exists")
	// ErrRefused is returned by Pull and Load for an image that is beyond a bound, or a registry that keeps one waiting: other
	// credentials would not help.
	ErrRefused = errors.New("refused")
	// ErrNotRunning is returned by Exec, Attach and Signal for a container that does not run.
	ErrNotRunning = errors.New("not running")
)

// State is a container's phase. It moves only forward.
type State string

const (
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
)

// Mount is one bind mount into a container.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	// RecursiveReadOnly also makes the mounts below read-only.
	RecursiveReadOnly bool
	// Propagation is "private", "rslave" or "rshared"; empty is private.
	Propagation string
}

// Resources are cgroup limits; zero values mean no limit.
type Resources struct {
	CPUShares   uint64 // cgroup v1 shares; converted on v2
	CPUQuota    int64  // microseconds per CPUPeriod
	CPUPeriod   uint64 // microseconds
	MemoryBytes int64
	PidsLimit   int64
	// OOMScoreAdj is clamped to what the host allows.
	OOMScoreAdj int
	HugePages   map[string]uint64 // page size ("2MB") -> bytes
}

// Spec says how to make a container. It is complete: the runtime looks nothing up but the image.
type Spec struct {
	// ID is unique on the node and chosen by the caller; [a-z0-9-]{1,76}.
	ID string
	// PodUID groups containers: they share a shim and a parent cgroup.
	PodUID string
	// Labels come back from List. Keys without prefix; values up to 4 KiB.
	Labels map[string]string
	// Image is an image ID or reference that the Images hold.
	Image string

	// Command and Args replace the image's entrypoint and command, as Kubernetes
	// says: Command set and Args not set drops the image's command.
	Command, Args []string
	// Env is added after the image's environment, and wins. "NAME=value".
	Env        []string
	WorkingDir string
	// Hostname is for the UTS namespace if the runtime makes it.
	Hostname string

	// NetNS, IPCNS, UTSNS, PIDNS are paths of namespaces to join; "host" means the
	// host's, empty a new one.
	NetNS, IPCNS, UTSNS, PIDNS string

	// User overrides the image's user: numeric uid. Nil keeps the image's.
	UID, GID *int64
	// Groups are supplementary group ids, added to those of the image's /etc/group for the user
	// unless StrictGroups.
	Groups       []int64
	StrictGroups bool

	Mounts     []Mount
	Devices    []string // host device paths
	Privileged bool
	// AddCaps and DropCaps change the default set; names without CAP_, "ALL" is all.
	AddCaps, DropCaps []string
	ReadonlyRootfs    bool
	NoNewPrivs        bool
	// Seccomp is "runtime/default", "unconfined" or the path of a profile.
	Seccomp string
	// Unmasked shows all of /proc and /sys (procMount: Unmasked).
	Unmasked  bool
	Sysctls   map[string]string
	Resources Resources
	// CgroupParent is a path below the cgroup root, such as "/coracle/podUID". The runtime
	// makes it; RemovePod removes it.
	CgroupParent string

	// TTY gives the container a terminal; Stdin keeps its input open for Attach; StdinOnce
	// closes it after the first Attach ended.
	TTY, Stdin, StdinOnce bool
	// LogPath is the file in CRI log format ("time stream F|P text") that gets all
	// output. The shim writes and rotates it (see crilog), also while the agent is down.
	LogPath string
	// StopSignal overrides the image's, e.g. "SIGQUIT".
	StopSignal string
}

// Container is a container as the runtime sees it now.
type Container struct {
	ID, PodUID string
	Labels     map[string]string
	Image      string // reference or ID it was made from
	ImageID    string // "sha256:..." of the image's config
	LogPath    string
	State      State
	PID        int
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int
	Signal     int  // the signal that ended it, 0 if none
	OOMKilled  bool // it, or a process of it, was killed for memory
	// Message says why a start failed, for people.
	Message string
	// StopSignal is the one to end it with.
	StopSignal syscall.Signal
}

// Streams are the ends of an exec or attach session; nil ones are not connected. Resize
// carries terminal sizes until the session ends.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Resize   <-chan Size
}

// Size is a terminal's size in cells.
type Size struct{ Width, Height uint16 }

// Exec is a further process in a running container.
type Exec struct {
	Command []string
	TTY     bool
	Streams Streams
}

// Stats is what a container used so far.
type Stats struct {
	At               time.Time
	CPU              time.Duration
	MemoryUsage      uint64 // bytes, with page cache
	MemoryWorkingSet uint64 // bytes, without inactive file cache
	MemoryRSS        uint64 // bytes
	Pids             uint64
	Disk             uint64 // bytes in the writable layer
	Inodes           uint64
}

// Runtime runs containers. All methods may be called at once from many goroutines.
// Every method is safe to repeat after a crash at any line: what is done already is a normal answer.
type Runtime interface {
	// Create makes the container's snapshot, specification and process, and does not start it.
	Create(ctx context.Context, s Spec) error
	// Start runs it. A container that ran already is left alone. An error that the container's own
	// command causes (not found, not executable) leaves it Exited with ExitCode 128 and Message.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to the container's first process, or to all if all is set.
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	// Remove kills the container if it runs and forgets it. Unknown is no error.
	Remove(ctx context.Context, id string) error
	// EndPod releases what only running containers need, of a pod of which none runs: the shim. What List says of them stays.
	EndPod(ctx context.Context, podUID string) error
	// RemovePod releases what the pod's containers shared: shim, cgroup. After all are removed.
	RemovePod(ctx context.Context, podUID, cgroupParent string) error
	List(ctx context.Context) ([]Container, error)
	Get(ctx context.Context, id string) (Container, error)
	// Changes tells the ID of each container whose state changed, from the call on, until ctx ends.
	// IDs may repeat and be merged; a slow reader misses none, it sees fewer. After (re)subscribing, List.
	Changes(ctx context.Context) <-chan string
	// Exec runs a command and returns its exit code. The end of ctx kills it.
	Exec(ctx context.Context, id string, e Exec) (int, error)
	// Attach connects to the first process until it ends, the streams end, or ctx ends.
	Attach(ctx context.Context, id string, s Streams) error
	// Update changes the limits of a running container.
	Update(ctx context.Context, id string, r Resources) error
	Stats(ctx context.Context, id string) (Stats, error)
	// DiskUsage is what a container, running or not, has in its writable layer: bytes and inodes. It walks the layer.
	DiskUsage(ctx context.Context, id string) (bytes, inodes uint64, err error)
	// PodPIDNS returns the path of a PID namespace that the containers of the pod share, for
	// Spec.PIDNS (shareProcessNamespace). A small holder process is its first; RemovePod ends it.
	PodPIDNS(ctx context.Context, podUID string) (string, error)
	// Purge removes every container, snapshot, mount, cgroup and process of ours, for "coracle delete".
	// Images in a containerd that is not ours stay.
	Purge(ctx context.Context) error
	Images() Images
	// ImageDir is a directory on the file system that holds the images' layers.
	ImageDir() string
	// Version is the engine's name and version for node status: "containerd://2.4.2".
	Version() string
}

// Image is one image on the node.
type Image struct {
	ID      string   // "sha256:..." of the config
	Names   []string // references, with tag: "docker.io/library/busybox:1"
	Digests []string // references with manifest digest
	Size    int64    // bytes of its content
	// Since is when one of its names was last given to it.
	Since time.Time
	// Pinned images are never removed to make room: they were loaded from a file, and nobody could fetch them again.
	Pinned bool
	// User is the image's configured user: a uid if numeric, else nil and the name.
	UID  *int64
	User string
}

// Auth is a registry login; empty is anonymous.
type Auth struct{ Username, Password, Token string }

// Images keeps the node's images.
type Images interface {
	// Pull fetches ref, trying the auths in order, or anonymously if there are none. progress may be nil.
	Pull(ctx context.Context, ref string, auths []Auth, progress func(Progress)) (Image, error)
	// Get finds an image by reference (normalised: "busybox" is docker.io/library/busybox:latest), digest or ID.
	Get(ctx context.Context, ref string) (Image, error)
	List(ctx context.Context) ([]Image, error)
	// Remove removes a name, or the image with all its names if ref is an ID. Unknown is ErrNotFound.
	Remove(ctx context.Context, ref string) error
	// Load reads an OCI or docker archive (tar, optionally gzip or zstd) and returns the names in it.
	Load(ctx context.Context, archive io.Reader) ([]Image, error)
}

// Progress of a pull, in bytes; Total is 0 while unknown.
type Progress struct{ Done, Total int64 }
