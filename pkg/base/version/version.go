// Package version identifies this build.
package version

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
)

const (
	// Coracle is the version of this project.
	Coracle = "v0.1.0"
	// Kubernetes is the version of the served API.
	Kubernetes = "v1.37.1"
	major      = "1"
	minor      = "37"
	// previous is the oldest minor version supported for clients and nodes, as upstream's --min-compatibility-version.
	previous = "36"
)

// Set by the linker (hack/stamp.sh); empty in other builds, such as tests.
var commit, treeState, date string

// Commit returns the commit of the sources, and whether they were modified; empty if unknown.
func Commit() (hash string, changed bool) { return commit, treeState == "dirty" }

// Date returns the date of the commit, or SOURCE_DATE_EPOCH at build time, in RFC 3339; empty if unknown.
func Date() string { return date }

// Info returns the response to GET /version, which nodes also report.
func Info() version.Info {
	return version.Info{
		Major:                 major,
		Minor:                 minor,
		EmulationMajor:        major,
		EmulationMinor:        minor,
		MinCompatibilityMajor: major,
		MinCompatibilityMinor: previous,
		GitVersion:            Kubernetes + "+coracle-" + Coracle[1:],
		GitCommit:             commit,
		GitTreeState:          treeState,
		BuildDate:             date,
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}
