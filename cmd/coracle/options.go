package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const defaultConfigFile = "/etc/coracle/config.yaml"

// configure adds the options of the parts to a command. The returned function loads the configuration.
func configure(cmd *cobra.Command, parts ...config.Part) (load func() (config.Config, error)) {
	o, f := config.NewOptions(), cmd.Flags()
	file := f.String("config", "", "YAML file of options (default "+defaultConfigFile+" where it exists)")
	sections := o.Of(append(parts, config.CommonPart)...)
	for _, s := range sections {
		f.AddFlagSet(s.Flags)
	}
	if len(parts) > 0 {
		helpBySection(cmd, sections)
	}
	return func() (config.Config, error) { return loadOptions(o, *file, f) }
}

// onMachine adds the options common to commands about this machine. The command loads the configuration and calls
// f.
func onMachine(cmd *cobra.Command, f func(ctx context.Context, c config.Config, args []string) error) {
	load := configure(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		return f(cmd.Context(), c, args)
	}
}

// loadOptions merges defaults, file, environment and flags, each overriding the previous one, and validates the
// result.
func loadOptions(o *config.Options, path string, flags *pflag.FlagSet) (config.Config, error) {
	required := true
	path = cmp.Or(path, os.Getenv(variable("config")))
	if path == "" {
		path, required = defaultConfigFile, false
	}
	values, err := readFile(path, required)
	if err != nil {
		return *o.Config, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if o.Lookup(name) == nil || !flags.Changed(name) && os.Getenv(variable(name)) == "" {
			if err := o.Set(name, values[name]); err != nil {
				return *o.Config, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		text := os.Getenv(variable(f.Name))
		if f.Changed || text == "" || o.Lookup(f.Name) == nil {
			return
		}
		if bad := o.Set(f.Name, text); bad != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", variable(f.Name), bad))
		}
	})
	if err != nil {
		return *o.Config, err
	}
	return *o.Config, o.Config.Validate()
}

// variable returns the environment variable of an option, such as CORACLE_LOG_LEVEL for log-level.
func variable(option string) string {
	return "CORACLE_" + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// maxConfig is the maximum size of a configuration file, in bytes.
const maxConfig = 1 << 20

func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := bounded.All(f, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// readFile reads options from a YAML file. Unless required, the file may be missing.
func readFile(path string, required bool) (map[string]any, error) {
	values := map[string]any{}
	data, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return values, nil
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return values, nil
}
