// Package version says what this build is. It may import nothing of Coracle.
package version

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
)

const (
	// Coracle is this project's release.
	Coracle = "v0.1.0"
	// Kubernetes is the release whose API is spoken.
	Kubernetes = "v1.37.1"
	major      = "1"
	minor      = "37"
)

// Info is what GET /version answers and nodes report.
func Info() version.Info {
	return version.Info{
		Major:      major,
		Minor:      minor,
		GitVersion: Kubernetes + "+coracle-" + Coracle[1:],
		GoVersion:  runtime.Version(),
		Compiler:   runtime.Compiler,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
}
