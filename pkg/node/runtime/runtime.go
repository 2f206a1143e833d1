// Package runtime defines the node agent's interface to a container runtime. The subpackage containerd runs real
// containers; the subpackage fake runs them in memory, for the agent's tests.
//
// Its invariant: the runtime is the source of truth for containers. A restarted agent reads everything from List;
// containers outlive the agent and the server.
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
	// ErrRefused is returned by Pull and Load for an image beyond a limit, or a registry that is too slow: other
	// credentials would not help.
	ErrRefused = errors.New("refused")
	// ErrNotRunning is returned by Exec, Attach and Signal for a container that is not running.
	ErrNotRunning = errors.New("not running")
)

// State is a container's state. It only moves forward.
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
	// NoExec forbids running the files.
	NoExec bool
	// NoSUID ignores the set-user-ID bits of files, NoDev forbids the use of devices.
	NoSUID, NoDev bool
	// Propagation is "private", "rslave" or "rshared"; empty is private.
	Propagation string
	// MapIDs maps the owners of the files with the container's user namespace: what belongs to ID n outside belongs to n
	// inside. Otherwise they belong to nobody inside, unless they are mapped already.
	MapIDs bool
}

// Device is a device of the host in a container.
type Device struct {
	HostPath string
	// ContainerPath is HostPath if empty.
	ContainerPath string
	// Permissions are of r, w and m (mknod); all if empty.
	Permissions string
}

// Unlimited takes a limit away with an update, where zero leaves it as it is.
const Unlimited = -1

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

// PodLimits are those of a pod's cgroup, which all its containers have together. Zero is no limit, and leaves the
// shares as they are.
type PodLimits struct {
	CPUShares   uint64 // cgroup v1 shares; converted on v2
	CPUQuota    int64  // microseconds per 100 ms
	MemoryBytes int64
}

// Spec is the specification of a container. It is complete, except for the image.
type Spec struct {
	// ID is unique on the node and chosen by the caller; [a-z0-9-]{1,76}.
	ID string
	// PodUID groups containers: they share a shim and a parent cgroup.
	PodUID string
	// Labels are returned by List. Values have at most 4 KiB.
	Labels map[string]string
	// Image is the ID of, or a reference to, an image on the node.
	Image string

	// Command and Args replace the image's entrypoint and command. As in Kubernetes, Command without Args also replaces
	// the image's command.
	Command, Args []string
	// Env overrides the image's environment; "NAME=value".
	Env        []string
	WorkingDir string
	// Hostname is set in the UTS namespace if the runtime creates it.
	Hostname string

	// NetNS, IPCNS, UTSNS and PIDNS are paths of namespaces to join; "host" means the host's, empty a new one.
	NetNS, IPCNS, UTSNS, PIDNS string
	// Users is the user namespace to join, to which the others belong; nil is the host's. IDs of the container are those
	// of it.
	Users *Users

	// UID and GID override the image's user; nil means the image's.
	UID, GID *int64
	// Groups are supplementary group ids, added to those of the image's /etc/group for the user
	// unless StrictGroups.
	Groups       []int64
	StrictGroups bool

	Mounts     []Mount
	Devices    []Device
	Privileged bool
	// AddCaps and DropCaps change the default set; names without CAP_, "ALL" is all.
	AddCaps, DropCaps []string
	ReadonlyRootfs    bool
	NoNewPrivs        bool
	// UnmaskedProc leaves out the masks over /proc and /sys that a container has unless it is privileged.
	UnmaskedProc bool
	// Seccomp is "runtime/default", "unconfined" or the path of a profile.
	Seccomp   string
	Sysctls   map[string]string
	Resources Resources
	// CgroupParent is a path below the cgroup root, such as "/coracle/podUID". The runtime creates it; RemovePod removes
	// it.
	CgroupParent string

	// TTY allocates a terminal; Stdin keeps stdin open for Attach; StdinOnce closes it after the first Attach.
	TTY, Stdin, StdinOnce bool
	// LogPath is the container's log file in CRI log format ("time stream F|P text"). The shim writes and rotates it (see
	// crilog), also while the agent is down.
	LogPath string
	// StopSignal overrides the image's, e.g. "SIGQUIT".
	StopSignal string
}

// Users is a user namespace.
type Users struct {
	Path string
	// First is the ID that root of the namespace has outside, Count the number of IDs from there on.
	First, Count uint32
}

// Container is the current state of a container.
type Container struct {
	ID, PodUID string
	Labels     map[string]string
	Image      string // Spec.Image
	ImageID    string // "sha256:..." of the image's config
	LogPath    string
	State      State
	PID        int
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int
	Signal     int  // the signal that ended it, 0 if none
	OOMKilled  bool // a process of it was killed by the OOM killer
	// Message is why a start failed.
	Message string
	// StopSignal is the signal that stops it.
	StopSignal syscall.Signal
}

// Streams are the streams of an exec or attach session; nil ones are not connected. Resize receives terminal sizes
// until the session ends.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Resize   <-chan Size
}

// Size is a terminal's size in cells.
type Size struct{ Width, Height uint16 }

// Exec is an additional process in a running container.
type Exec struct {
	Command []string
	TTY     bool
	Streams Streams
}

// Stats is a container's resource usage.
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

// Runtime runs containers. All methods are safe for concurrent use, and may be repeated after a crash at any point:
// what is already done is no error.
type Runtime interface {
	// Create creates a container and does not start it.
	Create(ctx context.Context, s Spec) error
	// Start starts a container that has not been started. If its command cannot be run (not found, not executable), it is
	// Exited with ExitCode 128 and Message.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to the container's first process, or to all if all is set.
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	// Remove kills the container if it runs, and removes it. It succeeds if there is none.
	Remove(ctx context.Context, id string) error
	// EndPod releases what only running containers need, the shim, of a pod without running containers. List still returns
	// them.
	EndPod(ctx context.Context, podUID string) error
	// RemovePod releases what the pod's containers share: shim and cgroup. All containers must have been removed.
	RemovePod(ctx context.Context, podUID, cgroupParent string) error
	List(ctx context.Context) ([]Container, error)
	Get(ctx context.Context, id string) (Container, error)
	// Changes returns the ID of each container whose state changes, from the call until ctx is done. Changes of one
	// container may be merged if the reader is slow, but none is lost. Call List after subscribing.
	Changes(ctx context.Context) <-chan string
	// Exec runs a command and returns its exit code. It is killed when ctx is done.
	Exec(ctx context.Context, id string, e Exec) (int, error)
	// Attach connects to the container's first process until it exits, the streams end, or ctx is done.
	Attach(ctx context.Context, id string, s Streams) error
	// Update changes those limits of a running container that are not zero.
	Update(ctx context.Context, id string, r Resources) error
	// UpdatePod sets those limits of a pod's cgroup that are not zero; it creates the cgroup, which RemovePod removes.
	UpdatePod(ctx context.Context, cgroupParent string, l PodLimits) error
	// MemoryUsage returns the bytes of memory that a container of the pod uses, with page cache; the whole pod, if id is
	// empty.
	MemoryUsage(ctx context.Context, cgroupParent, id string) (uint64, error)
	Stats(ctx context.Context, id string) (Stats, error)
	// DiskUsage returns the bytes and inodes in a container's writable layer, whether it runs or not. It walks the layer.
	DiskUsage(ctx context.Context, id string) (bytes, inodes uint64, err error)
	// PodPIDNS returns the path of the PID namespace that the containers of the pod share, for Spec.PIDNS
	// (shareProcessNamespace). Its first process is a pause process; RemovePod ends it. It belongs to users unless that is
	// nil.
	PodPIDNS(ctx context.Context, podUID string, users *Users) (string, error)
	// ContainerPIDNS returns the path of a running container's PID namespace, for another one of its pod. The path is that
	// namespace's, whatever becomes of the container, until release is called, which the caller must do; it is worth
	// nothing after the end of this process.
	ContainerPIDNS(ctx context.Context, id string) (path string, release func(), err error)
	// Purge removes every container, snapshot, mount, cgroup and process, for "coracle delete".
	Purge(ctx context.Context) error
	Images() Images
	// ImageDir returns a directory on the image filesystem.
	ImageDir() string
	// Version returns the runtime's name and version for the node's status: "containerd://2.4.2".
	Version() string
}

// Image is one image on the node.
type Image struct {
	ID      string   // "sha256:..." of the config
	Names   []string // references, with tag: "docker.io/library/busybox:1"
	Digests []string // references with manifest digest
	Size    int64    // bytes of its content
	// Since is when it was last tagged.
	Since time.Time
	// Pinned images are never garbage collected: they were loaded from a file and cannot be pulled again.
	Pinned bool
	// User is the image's configured user: a uid if numeric, else nil and the name.
	UID  *int64
	User string
}

// Auth is a registry credential; the zero value is anonymous.
type Auth struct{ Username, Password, Token string }

// Images manages the node's images.
type Images interface {
	// Pull pulls an image, trying the auths in order, or anonymously if there are none. progress may be nil.
	Pull(ctx context.Context, ref string, auths []Auth, progress func(Progress)) (Image, error)
	// Get returns an image by reference ("busybox" means docker.io/library/busybox:latest), digest or ID.
	Get(ctx context.Context, ref string) (Image, error)
	List(ctx context.Context) ([]Image, error)
	// Remove removes a name, or an image with all its names if ref is an ID. It returns ErrNotFound if there is none.
	Remove(ctx context.Context, ref string) error
	// Load reads an OCI or docker archive (tar, optionally gzip or zstd) and returns the names in it.
	Load(ctx context.Context, archive io.Reader) ([]Image, error)
	// View returns the directories of the layers of an image on the node, uppermost first, and holds them under the
	// caller's name until Unview, even if the image is removed. Calling it again with the same name returns the same
	// directories. Nothing may be written to them.
	View(ctx context.Context, name, ref string) ([]string, error)
	// Unview releases the layers that View holds under a name. It succeeds if there are none.
	Unview(ctx context.Context, name string) error
}

// Progress of a pull, in bytes; Total is 0 while unknown.
type Progress struct{ Done, Total int64 }
