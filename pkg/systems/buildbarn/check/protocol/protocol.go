// Package protocol is what pkg/systems/buildbarn/check and the process that it starts say to each other, and the limits
// of that process.
package protocol

// The limits of one process, which answers one request. What exceeds them is reported as an error of the file.
const (
	ProcessorSeconds = 2
	MemoryBytes      = 320 << 20 // that can be written to, of which the runtime takes 64 MiB at a time
	StackBytes       = 64 << 20
	OutputBytes      = 4 << 20 // of each evaluated file
	MaxMains         = 8
	// Exceeded is the exit code when the processor time is used up.
	Exceeded = 3
)

// Mounted is where a Secret is that Files do not have.
const Mounted = "/tls/"

// Request is what the process reads from its standard input, as JSON.
type Request struct {
	// Files may be imported, by name.
	Files map[string]string `json:"files"`
	Mains []Main            `json:"mains"`
	// Fields is whether fields are compared with those that the programs know.
	Fields bool `json:"fields"`
}

// Main is a file to check.
type Main struct {
	File string `json:"file"`
	// Program is what reads it: scheduler, storage, worker, runner or browser.
	Program string `json:"program"`
	// Variables are what std.extVar returns.
	Variables map[string]string `json:"variables"`
}

// Answer is what became of a Main. The process writes one for each, in their order, as a line of JSON, and ends with
// the first that has a problem.
type Answer struct {
	// Problem is for people: file, line if it is known, field, and what is wrong; empty if nothing was found.
	Problem string `json:"problem,omitempty"`
	// Unknown is true if there is no such field: another version of the program may have it.
	Unknown bool `json:"unknown,omitempty"`
	// Facts are what the file says about the farm around the program, if it has no problem, its fields were compared, and
	// they are not too many.
	Facts *Facts `json:"facts,omitempty"`
}

// The bounds of Facts, of which there are all or none.
const (
	MaxFacts      = 200 // of a kind
	MaxFactsBytes = 16 << 10
)

// Facts are what a configuration says about the farm around its program.
type Facts struct {
	Servers []Server `json:"servers,omitempty"`
	Clients []Client `json:"clients,omitempty"`
	Files   []File   `json:"files,omitempty"`
	Queues  []Queue  `json:"queues,omitempty"`
	Routes  []Route  `json:"routes,omitempty"`
}

// Place is where something is: fields as in grpcServers[0].listenAddresses, and the file with the line, if it is known.
type Place struct {
	Field string `json:"field"`
	Line  string `json:"line"`
}

// Server is where the program listens: a TCP address, or the path of a Unix socket.
type Server struct {
	Place
	Address string `json:"address,omitempty"`
	Path    string `json:"path,omitempty"`
}

// Client is whom the program calls: an address as gRPC has it.
type Client struct {
	Place
	Address string `json:"address"`
}

// File is one that the program makes as large as it is to be.
type File struct {
	Place
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Queue is what a worker serves, or a scheduler has before there are workers.
type Queue struct {
	Place
	// Prefix is of the instance names, Platform the properties in their order.
	Prefix   string     `json:"prefix,omitempty"`
	Platform []Property `json:"platform,omitempty"`
}

// Property is a platform property of the Remote Execution API.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Route is a scheduler to which a frontend passes actions on.
type Route struct {
	Place
	// Added is before the instance names that the scheduler gets.
	Added   string `json:"added,omitempty"`
	Address string `json:"address"`
}
