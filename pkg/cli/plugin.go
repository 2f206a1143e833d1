package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/util/homedir"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
)

const kubectlName = "kubectl"

// plugins runs kubectl's plugins. Upstream sets KUBECTL_PATH to os.Executable, so that plugins can call kubectl.
// Here that would be coracle, so KUBECTL_PATH is a link named kubectl.
type plugins struct {
	*cmd.DefaultPluginHandler
	started string // os.Args[0] of this process
}

func newPlugins(started string) *plugins {
	return &plugins{cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes), started}
}

// Execute implements cmd.PluginHandler. It returns only if it cannot start the plugin.
func (p *plugins) Execute(path string, args, environment []string) error {
	link, err := p.link()
	if err != nil {
		return fmt.Errorf("could not create a link named kubectl for the plugin: %w", err)
	}
	environment = slices.DeleteFunc(slices.Clone(environment), func(e string) bool {
		return strings.HasPrefix(e, "KUBECTL_PATH=")
	})
	return p.DefaultPluginHandler.Execute(path, args, append(environment, "KUBECTL_PATH="+link))
}

// link returns the path of a link named kubectl to this program: the one that started this process, or else one in
// kubectl's cache directory.
func (p *plugins) link() (string, error) {
	if filepath.Base(p.started) == kubectlName {
		if path, err := exec.LookPath(p.started); err == nil {
			return filepath.Abs(path)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := cmp.Or(os.Getenv("KUBECACHEDIR"), filepath.Join(homedir.HomeDir(), ".kube", "cache"))
	dir = filepath.Join(dir, "bin")
	link := filepath.Join(dir, kubectlName)
	if target, err := os.Readlink(link); err == nil && target == self {
		return link, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	// Create the link under another name and rename it, because another coracle may be using the current link.
	beside := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(self, beside); err != nil {
		return "", err
	}
	return link, os.Rename(beside, link)
}
