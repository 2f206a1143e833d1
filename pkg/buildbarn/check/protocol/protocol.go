// Package protocol is what pkg/buildbarn/check and the process that it starts say to each other, and the limits of that process.
//
// It may import nothing, so that neither side carries the other.
package protocol

// The limits of one process, which answers one request. What exceeds them is told as an error of the file.
const (
	ProcessorSeconds = 2
	MemoryBytes      = 256 << 20
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

// Answer is what became of a Main. The process writes one for each, in their order, as a line of JSON, and ends with the first that has a problem.
type Answer struct {
	// Problem is for people: file, line if it is known, field, and what is wrong; empty if the program starts with the file.
	Problem string `json:"problem,omitempty"`
	// Unknown is true if there is no such field: another version of the program may have it.
	Unknown bool `json:"unknown,omitempty"`
}
