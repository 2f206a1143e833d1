package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// nodeNameFile stores the machine's node name in the data directory. Under a second name the machine would be a
// second node: it would remove the pods of the first, which the API shows as running.
const nodeNameFile = "node-name"

const maxNodeName = 256 // bytes

// nodeName returns the node name of a data directory, which rememberNodeName has stored, or a new one. given is
// --node-name, or empty; hostname is the machine's. The stored name stands if the hostname changes. nodeName returns an
// error if given contradicts it.
func nodeName(dataDir, given, hostname string, log *slog.Logger) (string, error) {
	file := filepath.Join(dataDir, nodeNameFile)
	text, err := bounded.File(file, maxNodeName)
	known := strings.TrimSpace(string(text))
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && known == "":
		name := cmp.Or(given, strings.ToLower(hostname))
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			return "", fmt.Errorf("the hostname is not a valid node name: %q: %s: set one with --node-name", name, wrong[0])
		}
		return name, nil
	case err != nil:
		return "", err
	case given != "" && given != known:
		return "", fmt.Errorf("this machine is the node %q of its cluster, and --node-name says %q: leave --node-name out, "+
			"or, for a new node, stop, remove %s, start, and delete the old node with `coracle ctl delete node %s`",
			known, given, file, known)
	case given == "" && known != strings.ToLower(hostname):
		log.Info("the hostname is not the node's name; the node keeps its name", "hostname", hostname, "node", known)
	}
	return known, nil
}

// rememberNodeName stores the machine's node name, unless there is one: after a join that was accepted, after a
// server's start, and from a snapshot that is restored, whose cluster has the Node and the pods that are bound to it.
// name may be empty for none.
func rememberNodeName(dataDir, name string) error {
	file := filepath.Join(dataDir, nodeNameFile)
	if _, err := os.Stat(file); err == nil || name == "" {
		return nil
	}
	return atomicfile.WriteDurably(file, []byte(name+"\n"))
}
