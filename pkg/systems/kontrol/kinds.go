package kontrol

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// kinds returns Kontrol's kinds. tunnels is nil if no agents can connect. The kinds add nothing to the roles edit,
// admin and view: a writer of Resources acts on clusters with the clusters' credentials, and Resources may contain
// Secrets. Only cluster administrators (cluster-admin) read and write them.
//
// Schema functions are for API servers other than Coracle's: defaults and the cheap part of the validation. The
// operator does the rest and reports errors in the status.
func kinds(tunnels *pull.Hub) []own.Kind {
	return []own.Kind{clusterKind(tunnels), resourceKind(), bundleKind(), appliedKind(), currentKind()}
}

var categories = []string{"coracle", "kontrol"}

// dnsLabel is the pattern of a DNS label.
const dnsLabel = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

// commonSchema adjusts the fields that the specs of Resources and Bundles share.
func commonSchema(s *own.Schema) {
	own.Adjust(s, "spec", own.WithRule("has(self.clusterName) != has(self.clusterSelector)",
		"exactly one of clusterName and clusterSelector"))
	own.Adjust(s, "spec.mode", own.OneOf(kontrol.ModeReport, kontrol.ModeCorrect, kontrol.ModeEnforce),
		own.WithDefault(kontrol.ModeCorrect))
	own.Adjust(s, "spec.deletionPolicy", own.OneOf(kontrol.DeletionOrphan, kontrol.DeletionDelete),
		own.WithDefault(kontrol.DeletionDelete))
	own.Adjust(s, "spec.windows.[].kind", own.OneOf(kontrol.WindowAllow, kontrol.WindowDeny))
}

// text returns a column whose cells show a value.
func text[P client.Object](name, about, path string, cell func(P) any) own.Column[P] {
	return own.Column[P]{Name: name, About: about, Path: path, Cell: cell}
}

// number returns a column whose cells show a number that is in a field.
func number[P client.Object](name, about, path string, cell func(P) any) own.Column[P] {
	return own.Column[P]{Name: name, About: about, Path: path, PathType: "integer", Cell: cell}
}

// elsewhere returns a column for other API servers, which print a field.
func elsewhere[P client.Object](name, about, path, kind string) own.Column[P] {
	return own.Column[P]{Name: name, About: about, Path: path, PathType: kind}
}

// messageColumn returns the column of what is wrong.
func messageColumn[P client.Object](path string, cell func(P) any) own.Column[P] {
	return wide(text("Message", "What is wrong, and what to do", path, cell))
}

func wide[P client.Object](c own.Column[P]) own.Column[P] {
	c.Wide = true
	return c
}
