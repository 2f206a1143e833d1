package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Options is the list of all options of a Config, with names, defaults and descriptions. Setting a flag sets the
// field of Config.
type Options struct {
	Config   *Config
	Sections []Section
}

// Section is a group of options in the help of a command.
type Section struct {
	Title string
	Part  Part
	// Advanced sections are listed only in "coracle help options".
	Advanced bool
	Flags    *pflag.FlagSet
}

// Part is the kind of process that has an option.
type Part int

// Parts: options of all commands, of the control plane, of a node, and of a node that joins another server.
const (
	CommonPart Part = iota
	ServerPart
	AgentPart
	JoinPart
)

// NewOptions returns all options, with their defaults.
func NewOptions() *Options {
	c := &Config{}
	o := &Options{Config: c}
	add := func(part Part, title string, advanced bool, bind ...func(*pflag.FlagSet)) {
		f := pflag.NewFlagSet(title, pflag.ContinueOnError)
		f.SortFlags = false
		for _, b := range bind {
			b(f)
		}
		o.Sections = append(o.Sections, Section{title, part, advanced, f})
	}
	add(JoinPart, "Join", false, c.joinOptions)
	add(ServerPart, "Cluster", false, c.Server.options)
	add(AgentPart, "Node", false, c.Agent.options)
	add(ServerPart, "Services and Ingresses", false, c.LoadBalancing.options, c.Ingress.options)
	add(ServerPart, "Snapshots", true, c.Snapshots.options)
	add(ServerPart, "Encryption", false, c.Encryption.options)
	add(ServerPart, "REST facade", false, c.REST.options)
	add(CommonPart, "Process", false, c.Common.options)
	add(AgentPart, "Resources and eviction", true, c.resourceOptions)
	add(AgentPart, "Images", true, c.imageOptions)
	add(AgentPart, "Shutdown of the machine", true, c.Shutdown.options)
	add(ServerPart, "Scheduling and failing nodes", true, c.failureOptions, c.Tolerations.options)
	add(ServerPart, "API server", true, c.apiOptions, c.Requests.options)
	add(ServerPart, "Authentication and authorization", true, c.anonymousOption, c.Access.options, c.OIDC.options,
		c.FrontProxy.options)
	add(ServerPart, "Service accounts", true, c.Accounts.options)
	add(ServerPart, "Audit", true, c.Audit.options)
	return o
}

// Of returns the sections of these parts.
func (o *Options) Of(parts ...Part) (sections []Section) {
	for _, s := range o.Sections {
		if slices.Contains(parts, s.Part) {
			sections = append(sections, s)
		}
	}
	return sections
}

// Set sets an option to a value from a configuration file or to the text of an environment variable, in which
// commas separate list elements.
func (o *Options) Set(name string, value any) error {
	f := o.Lookup(name)
	if f == nil {
		return fmt.Errorf("unknown option %q; there are %s", name, strings.Join(o.names(), ", "))
	}
	var elements []string
	switch v := value.(type) {
	case map[string]any: // the kubelet's format of eviction-hard
		if name != "eviction-hard" {
			return fmt.Errorf("%s: expected a value, not a map", name)
		}
		elements = ThresholdEntries(v)
	case []any:
		for _, element := range v {
			elements = append(elements, fmt.Sprint(element))
		}
	case nil:
		return nil
	default:
		elements = strings.Split(fmt.Sprint(v), ",")
	}
	list, isList := f.Value.(pflag.SliceValue)
	switch _, several := value.([]any); {
	case isList && len(elements) == 1 && elements[0] == "":
		return list.Replace(nil)
	case isList:
		return list.Replace(elements)
	case several:
		return fmt.Errorf("%s: expected a value, not a list", name)
	}
	if err := f.Value.Set(fmt.Sprint(value)); err != nil {
		return fmt.Errorf("%s: %q is not a %s", name, fmt.Sprint(value), f.Value.Type())
	}
	return nil
}

// Lookup returns the option with the name, or nil.
func (o *Options) Lookup(name string) *pflag.Flag {
	for _, s := range o.Sections {
		if f := s.Flags.Lookup(name); f != nil {
			return f
		}
	}
	return nil
}

func (o *Options) names() (names []string) {
	for _, s := range o.Sections {
		s.Flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	}
	slices.Sort(names)
	return names
}

// Default returns the configuration of `coracle start` without options.
func Default() Config { return *NewOptions().Config }

// UpstreamOptions adds the API server's options that have the same name and meaning as kube-apiserver's, except
// allow-privileged and anonymous-auth.
func (c *Config) UpstreamOptions(f *pflag.FlagSet) {
	for _, bind := range []func(*pflag.FlagSet){
		c.nodePortOption, c.Encryption.providerOption, c.apiOptions, c.Requests.options, c.Tolerations.options,
		c.Access.options, c.OIDC.options, c.FrontProxy.options, c.Accounts.options, c.Audit.options,
	} {
		bind(f)
	}
}

// Values returns the options of the control plane by name, as text. None is secret, because secrets are in files.
func (c Server) Values() map[string]string {
	o, values := NewOptions(), map[string]string{}
	o.Config.Server = c
	for _, s := range o.Of(ServerPart) {
		s.Flags.VisitAll(func(f *pflag.Flag) {
			values[f.Name] = f.Value.String()
			if list, ok := f.Value.(pflag.SliceValue); ok {
				values[f.Name] = strings.Join(list.GetSlice(), ",")
			}
		})
	}
	return values
}
