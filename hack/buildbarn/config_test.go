package buildbarn

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_runner"
	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_scheduler"
	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_worker"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/bb_storage"
	"github.com/buildbarn/bb-storage/pkg/util"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// programs are the messages into which the programs read their files, by the first part of the file's name.
// bb_browser's is missing, because its module is not a dependency.
var programs = map[string]func() proto.Message{
	"storage":   func() proto.Message { return &bb_storage.ApplicationConfiguration{} },
	"frontend":  func() proto.Message { return &bb_storage.ApplicationConfiguration{} },
	"scheduler": func() proto.Message { return &bb_scheduler.ApplicationConfiguration{} },
	"worker":    func() proto.Message { return &bb_worker.ApplicationConfiguration{} },
	"runner":    func() proto.Message { return &bb_runner.ApplicationConfiguration{} },
}

// read reads a file as its program does. Unknown fields are errors. It returns false for an unknown program.
func read(file string) (bool, error) {
	part, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), "-")
	message, ok := programs[part]
	if !ok {
		return false, nil
	}
	return true, util.UnmarshalConfigurationFromFile(file, message())
}

// TestExample checks the configuration in manifests/examples/buildbarn.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../manifests/examples/buildbarn/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range config.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n := readAll(t, filepath.Join(dir, "*.jsonnet")); n != 5 {
		t.Errorf("%d files were read instead of 5", n)
	}
}

// TestRendered checks the rendered files of pkg/systems/buildbarn/config in its testdata, which has a folder for
// each case.
func TestRendered(t *testing.T) {
	if n := readAll(t, "../../pkg/systems/buildbarn/config/testdata/*/*.jsonnet"); n != 5+7+5 {
		t.Errorf("%d rendered files were read instead of 17", n)
	}
}

// readAll reads files as their programs do, and returns their number.
func readAll(t *testing.T, pattern string) (n int) {
	t.Setenv("NODE_NAME", "node")
	t.Setenv("POD_NAME", "pod")
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		known, err := read(file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if known {
			n++
		}
	}
	return n
}

func TestWrongFieldsAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "storage.jsonnet")
	if err := os.WriteFile(file, []byte("{maximumMessageSize: 1}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := read(file); err == nil {
		t.Error("an unknown field was accepted")
	}
}
