// Package runtime defines the node agent's interface to a container runtime. The subpackage containerd implements it
// for real containers, the subpackage fake in memory for tests of the agent.
//
// Its invariant: the runtime is the source of truth for containers. Containers outlive the agent and the server; a
// restarted agent reads all state from List.
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
	// ErrRefused is returned by Pull and Load for an image that exceeds a limit, and by Pull for a registry that is
	// too slow. Other credentials would not help.
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
	// RecursiveReadOnly also makes mounts below the source read-only.
	RecursiveReadOnly bool
	// NoExec forbids executing the files.
	NoExec bool
	// NoSUID ignores the set-user-ID bits of files, NoDev forbids the use of devices.
	NoSUID, NoDev bool
	// Propagation is "private", "rslave" or "rshared"; empty is private.
	Propagation string
	// MapIDs maps the owners of the files by the container's user namespace: ID n outside becomes ID n inside.
	// Otherwise the files belong to the overflow ID inside, unless the source is already mapped.
	MapIDs bool
}

// Device is a device of the host in a container.
type Device struct {
	HostPath string
	// ContainerPath is HostPath if empty.
	ContainerPath string
	// Permissions are letters of "rwm" (m is mknod); empty means all.
	Permissions string
}

// Unlimited removes a limit in Update and UpdatePod, where zero leaves it unchanged.
const Unlimited = -1

// Resources are cgroup limits; zero values mean no limit.
type Resources struct {
	CPUShares   uint64 // cgroup v1 shares; converted on v2
	CPUQuota    int64  // microseconds per CPUPeriod
	CPUPeriod   uint64 // microseconds
	MemoryBytes int64
	SwapBytes   int64 // swap in addition to memory, on cgroup v2; 0 means none
	PidsLimit   int64
	// OOMScoreAdj is clamped to what the host allows.
	OOMScoreAdj int
	HugePages   map[string]uint64 // page size ("2MB") -> bytes
}

// PodLimits are the limits of a pod's cgroup. Zero means no limit; UpdatePod leaves it unchanged.
type PodLimits struct {
	CPUShares   uint64 // cgroup v1 shares; converted on v2
	CPUQuota    int64  // microseconds per 100 ms
	MemoryBytes int64
}

// Values of Spec.AppArmor.
const (
	Unconfined   = "unconfined"
	LocalProfile = "localhost/" // followed by the name of a profile that the host has loaded
)

// Spec is the complete specification of a container, except for what the image provides.
type Spec struct {
	// ID is unique on the node and chosen by the caller; [a-z0-9-]{1,76}.
	ID string
	// PodUID groups containers: they share a shim and a parent cgroup.
	PodUID string
	// Labels are returned by List. Values have at most 4 KiB.
	Labels map[string]string
	// Image is the ID of, or a reference to, an image on the node.
	Image string

	// Command and Args replace the image's entrypoint and command. Command without Args also clears the latter.
	Command, Args []string
	// Env overrides the image's environment; "NAME=value".
	Env        []string
	WorkingDir string
	// Hostname is set in the UTS namespace if the runtime creates it.
	Hostname string

	// NetNS, IPCNS, UTSNS and PIDNS are paths of namespaces to join; "host" means the host's, empty a new one.
	NetNS, IPCNS, UTSNS, PIDNS string
	// Users is the user namespace to join, which owns the other namespaces; nil means the host's. IDs in the Spec are
	// IDs inside this namespace.
	Users *Users

	// UID and GID override the image's user; nil means the image's.
	UID, GID *int64
	// Groups are supplementary group IDs, in addition to the image's /etc/group unless StrictGroups is set.
	Groups       []int64
	StrictGroups bool

	Mounts     []Mount
	Devices    []Device
	Privileged bool
	// AddCaps and DropCaps change the default set; names have no CAP_ prefix, "ALL" means all.
	AddCaps, DropCaps []string
	ReadonlyRootfs    bool
	NoNewPrivs        bool
	// UnmaskedProc disables the masks over parts of /proc and /sys that unprivileged containers have.
	UnmaskedProc bool
	// Seccomp is "runtime/default", "unconfined" or the path of a profile.
	Seccomp string
	// AppArmor is Unconfined, LocalProfile with a name, or empty for the runtime's default profile, which applies where
	// the host has AppArmor.
	AppArmor  string
	Sysctls   map[string]string
	Resources Resources
	// CgroupParent is a path below the cgroup root ("/coracle/podUID"), which RemovePod removes.
	CgroupParent string

	// TTY allocates a terminal; Stdin keeps stdin open for Attach; StdinOnce closes it after the first Attach.
	TTY, Stdin, StdinOnce bool
	// LogPath is the container's log file in CRI log format ("time stream F|P text"). The shim writes and rotates it
	// (see crilog), also while no agent runs.
	LogPath string
	// StopSignal overrides the image's, e.g. "SIGQUIT".
	StopSignal string
}

// Users is a user namespace.
type Users struct {
	Path string
	// First is the outside ID of the namespace's root, Count the number of mapped IDs.
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
	OOMKilled  bool // the OOM killer killed one of its processes
	// Message says why a start failed, or that the image is for another architecture.
	Message    string
	StopSignal syscall.Signal
	// User is what the first process began as; nil before, and if the shim of an older version started it.
	User *User
}

// User is a process's identity. IDs are inside the container's user namespace.
type User struct {
	UID, GID int64
	Groups   []int64 // supplementary ones, in order
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

// Stats is a container's resource usage. Running shims of other releases return it as JSON: fields keep their names.
type Stats struct {
	At         time.Time
	CPU        time.Duration
	Memory     uint64 // bytes, with page cache
	WorkingSet uint64 // bytes, without inactive file cache
	RSS        uint64 // bytes
	Cache      uint64 // bytes of page cache
	Swap       uint64 // bytes
	Pids       uint64
	// SwapLimit is in bytes; nil if swap is not limited, and on cgroup v1.
	SwapLimit *uint64
	// Periods counts the CPU limit's periods in which the container ran, ThrottledPeriods how many reached the limit.
	Periods, ThrottledPeriods uint64
	Throttled                 time.Duration
	// Pressure is nil if the kernel does not measure it: on cgroup v1, or without PSI.
	Pressure *Pressure
}

// Pressure is how long the tasks of a container or pod waited for resources (pressure stall information, PSI).
type Pressure struct{ CPU, Memory, IO Stalls }

// Stalls is the time in which some, or all, of the tasks waited for one resource.
type Stalls struct{ Some, Full Stall }

// Stall has the shares of the last 10, 60 and 300 seconds, in percent.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Runtime runs containers. All methods are safe for concurrent use, and may be repeated after a crash at any point:
// repeating a completed step is not an error.
type Runtime interface {
	// Create creates a container without starting it.
	Create(ctx context.Context, s Spec) error
	// Start starts a container that was never started. If its command cannot be run (not found, not executable), the
	// container becomes Exited with ExitCode 128 and a Message.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to the container's first process, or to all its processes if all is set.
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	// Remove kills the container if it runs, and removes it. It succeeds if the container does not exist.
	Remove(ctx context.Context, id string) error
	// EndPod stops the shim of a pod without running containers. List still returns the pod's containers.
	EndPod(ctx context.Context, podUID string) error
	// RemovePod removes the shim and cgroup of a pod whose containers have all been removed.
	RemovePod(ctx context.Context, podUID, cgroupParent string) error
	List(ctx context.Context) ([]Container, error)
	Get(ctx context.Context, id string) (Container, error)
	// Changes sends the ID of each container whose state changes, from the call until ctx is done. Several changes of
	// one container may be merged if the reader is slow, but none is lost. Call List after Changes.
	Changes(ctx context.Context) <-chan string
	// Exec runs a command and returns its exit code. The command is killed when ctx is done.
	Exec(ctx context.Context, id string, e Exec) (int, error)
	// Attach connects to the container's first process until it exits, the streams end, or ctx is done.
	Attach(ctx context.Context, id string, s Streams) error
	// Update changes the limits of a running container; zero leaves a limit unchanged.
	Update(ctx context.Context, id string, r Resources) error
	// UpdatePod sets limits of a pod's cgroup, which it creates if necessary; zero leaves a limit unchanged.
	UpdatePod(ctx context.Context, cgroupParent string, l PodLimits) error
	// MemoryUsage returns the memory usage of a container in bytes, with page cache; of the whole pod if id is empty.
	MemoryUsage(ctx context.Context, cgroupParent, id string) (uint64, error)
	// PodUsage returns the most bytes of memory that a pod has used at a time, with page cache, and its processor time.
	// Its containers may have ended.
	PodUsage(ctx context.Context, cgroupParent string) (memory uint64, cpu time.Duration, err error)
	// PodPressure returns nil if the kernel does not measure it, and for a pod without a cgroup.
	PodPressure(ctx context.Context, cgroupParent string) *Pressure
	Stats(ctx context.Context, id string) (Stats, error)
	// DiskUsage walks a container's writable layer and returns its bytes and inodes. The container need not run.
	DiskUsage(ctx context.Context, id string) (bytes, inodes uint64, err error)
	// PodPIDNS returns the path of the PID namespace that the pod's containers share, for Spec.PIDNS
	// (shareProcessNamespace). Its first process is a pause process, which RemovePod ends. users, if not nil, owns
	// the namespace.
	PodPIDNS(ctx context.Context, podUID string, users *Users) (string, error)
	// ContainerPIDNS returns the path of a running container's PID namespace, for another container of its pod. The
	// path stays valid, even if the container exits, until the caller calls release, which it must do, or this
	// process ends.
	ContainerPIDNS(ctx context.Context, id string) (path string, release func(), err error)
	// Purge removes all containers, snapshots, mounts, cgroups and processes, for "coracle delete".
	Purge(ctx context.Context) error
	Images() Images
	// ImageDir returns a directory on the file system of the images.
	ImageDir() string
	// Version returns the runtime's name and version for the Node's status, such as "containerd://2.4.2".
	Version() string
}

// Image is one image on the node.
type Image struct {
	ID      string   // "sha256:..." of the config
	Names   []string // references, with tag: "docker.io/library/busybox:1"
	Digests []string // references with manifest digest
	Size    int64    // bytes of its content
	// Since is the time at which it was last tagged.
	Since time.Time
	// Pinned images are never garbage-collected: they were loaded from a file and cannot be pulled again.
	Pinned bool
	// UID is the user of the image's configuration if it is numeric, otherwise User is its name.
	UID  *int64
	User string
}

// Auth is a registry credential; the zero value is anonymous.
type Auth struct{ Username, Password, Token string }

// Images manages the node's images.
type Images interface {
	// Pull pulls an image. It tries auths in order; none means anonymous.
	Pull(ctx context.Context, ref string, auths []Auth, observe PullObserver) (Image, error)
	// Get returns an image by reference ("busybox" means docker.io/library/busybox:latest), digest or ID.
	Get(ctx context.Context, ref string) (Image, error)
	List(ctx context.Context) ([]Image, error)
	// Usage returns the bytes and inodes of all images' unpacked layers, as recorded when they were unpacked.
	Usage(ctx context.Context) (bytes, inodes uint64, err error)
	// Remove removes a name, or all names of an image ID. It returns ErrNotFound if neither exists.
	Remove(ctx context.Context, ref string) error
	// Load reads an OCI or docker archive (tar, optionally gzip or zstd) and returns the names in it.
	Load(ctx context.Context, archive io.Reader) ([]Image, error)
	// View returns the directories of an image's layers, uppermost first, and keeps them under the caller's name
	// until Unview, even if the image is removed. Repeating it with the same name returns the same directories. The
	// caller must not write to them.
	View(ctx context.Context, name, ref string) ([]string, error)
	// Unview releases the layers that View keeps under a name. It succeeds if there are none.
	Unview(ctx context.Context, name string) error
}

// Progress is the progress of a pull, in bytes; Total is 0 while unknown.
type Progress struct{ Done, Total int64 }

// PullObserver has functions that a pull calls. Each may be nil.
type PullObserver struct {
	Progress func(Progress)
	// Found is called with the image's ID before Get, by any reference or ID, and List can return the image. The pull
	// fails if Found does. It may be called more than once, also for other images of an index.
	Found func(id string) error
}
