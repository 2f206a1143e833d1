// Package protocol defines the messages between pkg/systems/buildbarn/check and the process that it starts, and the
// limits of that process.
package protocol

// The limits of one process, which answers one request. Exceeding one is reported as an error of the file.
const (
	ProcessorSeconds = 2
	MemoryBytes      = 320 << 20 // writable memory; the Go runtime reserves it in steps of 64 MiB
	StackBytes       = 64 << 20
	OutputBytes      = 4 << 20 // of each evaluated file
	MaxMains         = 8
	MaxUsedBytes     = 16 << 10 // of all names in Answer.Used
	// Exceeded is the exit code of a process that has used up its processor time.
	Exceeded = 3
)

// Mounted is the directory of the mounted Secret, whose files Request.Files does not contain.
const Mounted = "/tls/"

// Request is the input of the process, as JSON.
type Request struct {
	// Files are the files that may be imported, by name.
	Files map[string]string `json:"files"`
	Mains []Main            `json:"mains"`
	// Fields makes the process compare fields with the schema.
	Fields bool `json:"fields"`
}

// Main is a file to check.
type Main struct {
	File string `json:"file"`
	// Program reads the file: scheduler, storage, worker, runner or browser.
	Program string `json:"program"`
	// Variables are the values of std.extVar.
	Variables map[string]string `json:"variables"`
}

// Answer is the result for a Main. The process writes one JSON line per Main, in order, and stops after the first with
// a problem.
type Answer struct {
	// Problem is written for users: file, line if known, field, and the fault. It is empty for a valid file.
	Problem string `json:"problem,omitempty"`
	// Unknown means that the schema has no such field; another version of the program may have it.
	Unknown bool `json:"unknown,omitempty"`
	// Used are the names of the files that the program reads: the Main and what it imports.
	Used []string `json:"used,omitempty"`
	// Facts are set if the file is valid, its fields were compared, and the facts are within the limits.
	Facts *Facts `json:"facts,omitempty"`
}

// The limits of Facts. Facts beyond them are omitted completely.
const (
	MaxFacts      = 200 // per kind
	MaxFactsBytes = 16 << 10
)

// Facts are the statements of a configuration about the farm around its program.
type Facts struct {
	Servers []Server `json:"servers,omitempty"`
	Clients []Client `json:"clients,omitempty"`
	Files   []File   `json:"files,omitempty"`
	Queues  []Queue  `json:"queues,omitempty"`
	Routes  []Route  `json:"routes,omitempty"`
}

// Place locates a fact: its field, as in grpcServers[0].listenAddresses, and its file with the line if known.
type Place struct {
	Field string `json:"field"`
	Line  string `json:"line"`
}

// Server is an address where the program listens: a TCP address, or the path of a Unix socket.
type Server struct {
	Place
	Address string `json:"address,omitempty"`
	Path    string `json:"path,omitempty"`
}

// Client is a gRPC address that the program calls.
type Client struct {
	Place
	Address string `json:"address"`
}

// File is a file that the program creates with a fixed size.
type File struct {
	Place
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Queue is a platform queue that a worker serves or a scheduler predeclares.
type Queue struct {
	Place
	// Prefix is the instance name prefix. Platform keeps the order of the file.
	Prefix   string     `json:"prefix,omitempty"`
	Platform []Property `json:"platform,omitempty"`
}

// Property is a platform property of the Remote Execution API.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Route is a scheduler to which a frontend forwards actions.
type Route struct {
	Place
	// Added is the prefix that the frontend adds to instance names.
	Added   string `json:"added,omitempty"`
	Address string `json:"address"`
}
