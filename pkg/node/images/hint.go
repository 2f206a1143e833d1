package images

import (
	"context"
	"fmt"
	"strings"

	"github.com/distribution/reference"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// loaded returns what to do about an image that cannot be pulled, if it, or the image with another tag, was loaded
// into this node from a file: then every pod may use it. always means that the pod's pull policy is Always.
func (m *Manager) loaded(ctx context.Context, ref string, always bool) string {
	all, err := m.images.List(ctx)
	want, wantErr := reference.ParseDockerRef(ref)
	if err != nil || wantErr != nil {
		return ""
	}
	other := ""
	for _, image := range all {
		for _, name := range image.Names {
			have, err := reference.ParseDockerRef(name)
			switch {
			case !image.Pinned || err != nil || have.Name() != want.Name():
			case have.String() == want.String() && !always:
				return ". The image was loaded into this node meanwhile: the next attempt uses it"
			case have.String() == want.String():
				return ". This node has the image, but imagePullPolicy Always, which is the default for the tag latest, asks " +
					"the registry for it: set imagePullPolicy: IfNotPresent"
			case other == "" || strings.HasSuffix(other, ":latest"): // whose pull policy is Always
				other = reference.FamiliarString(have)
			}
		}
	}
	if other == "" {
		return ""
	}
	policy := ""
	if strings.HasSuffix(other, ":latest") {
		policy = ", with imagePullPolicy: IfNotPresent"
	}
	return fmt.Sprintf(". This node has %s: name that tag%s", bounded.Text(other, maxError), policy)
}

// examples is the repository of the images that this project's examples use. No registry has them.
const examples = "docker.io/coracle/"

// maxNamed is the number of nodes that a hint names.
const maxNamed = 3

// hint returns what to do about an image that only other nodes have.
func (m *Manager) hint(ref string) string {
	var nodes []string
	if m.Elsewhere != nil {
		nodes = m.Elsewhere(ref)
	}
	switch {
	case len(nodes) > 0:
	case strings.HasPrefix(ref, examples):
		return ". Images of Coracle's examples are not in a registry: run \"make images\" in a clone of its repository, " +
			"and \"coracle image load dist/images/*.tar\""
	default:
		return ""
	}
	names := strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if more := len(nodes) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf(". It is on node %s: \"coracle image load\" loads an image on one machine only, so run it on this "+
		"node's machine too, or push the image to a registry", names)
}
