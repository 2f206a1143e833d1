package scheduler

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Configuration holds the settings of a KubeSchedulerConfiguration. The zero value is the default.
type Configuration struct {
	// SamplePercent is percentageOfNodesToScore.
	SamplePercent int
	profiles      []*profile
}

// Supported parts of a KubeSchedulerConfiguration. Other fields are unknown, and refused.
type configuration struct {
	APIVersion               string              `json:"apiVersion"`
	Kind                     string              `json:"kind"`
	PercentageOfNodesToScore int                 `json:"percentageOfNodesToScore"`
	Profiles                 []configuredProfile `json:"profiles"`
}

type configuredProfile struct {
	SchedulerName string `json:"schedulerName"`
	Plugins       struct {
		Score struct {
			Enabled  []configuredScore `json:"enabled"`
			Disabled []struct {
				Name string `json:"name"`
			} `json:"disabled"`
		} `json:"score"`
	} `json:"plugins"`
	PluginConfig []struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"pluginConfig"`
}

type configuredScore struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight"`
}

type fitArgs struct {
	APIVersion      string    `json:"apiVersion"`
	Kind            string    `json:"kind"`
	ScoringStrategy *strategy `json:"scoringStrategy"`
}

const (
	configurationVersion = "kubescheduler.config.k8s.io/v1"
	configurationKind    = "KubeSchedulerConfiguration"
	resourcesFit         = "NodeResourcesFit"
)

// ParseConfiguration reads a KubeSchedulerConfiguration in YAML or JSON: profiles with the weights of scores, and
// the scoring strategy of NodeResourcesFit. Unsupported settings are an error. As upstream, pods that name no
// configured profile are left to other schedulers. The task profile always exists.
func ParseConfiguration(data []byte) (out Configuration, err error) {
	var c configuration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return out, fmt.Errorf("%w; of a %s profiles with schedulerName, plugins.score and pluginConfig of %s, and "+
			"percentageOfNodesToScore are supported", err, configurationKind, resourcesFit)
	}
	if c.APIVersion != configurationVersion || c.Kind != configurationKind {
		return out, fmt.Errorf("this is a %q of %q: a %s of %s is needed", c.Kind, c.APIVersion, configurationKind,
			configurationVersion)
	}
	if c.PercentageOfNodesToScore < 0 || c.PercentageOfNodesToScore > 100 {
		return out, fmt.Errorf("percentageOfNodesToScore: %d is not from 0 to 100", c.PercentageOfNodesToScore)
	}
	out.SamplePercent = c.PercentageOfNodesToScore
	if len(c.Profiles) == 0 {
		return out, nil
	}
	for i, p := range c.Profiles {
		f, err := p.profile()
		if err != nil {
			return Configuration{}, fmt.Errorf("profiles[%d]: %w", i, err)
		}
		if f.name == TaskProfile ||
			slices.ContainsFunc(out.profiles, func(other *profile) bool { return other.name == f.name }) {
			return Configuration{}, fmt.Errorf("profiles[%d]: there is a profile %q already", i, f.name)
		}
		out.profiles = append(out.profiles, f)
	}
	out.profiles = append(out.profiles, taskProfile)
	return out, nil
}

func (c *configuredProfile) profile() (*profile, error) {
	f := &profile{name: c.SchedulerName, filters: filters, scores: slices.Clone(scores)}
	f.name = cmp.Or(f.name, corev1.DefaultSchedulerName)
	for _, d := range c.Plugins.Score.Disabled {
		if d.Name != "*" && indexOf(scores, d.Name) < 0 {
			return nil, unknownScore("plugins.score.disabled", d.Name)
		}
		f.scores = slices.DeleteFunc(f.scores, func(s score) bool { return d.Name == "*" || s.name == d.Name })
	}
	for _, e := range c.Plugins.Score.Enabled {
		at := indexOf(scores, e.Name)
		if at < 0 {
			return nil, unknownScore("plugins.score.enabled", e.Name)
		}
		if e.Weight < 0 || e.Weight > math.MaxInt32 {
			return nil, fmt.Errorf("plugins.score.enabled: the weight %d of %s is not from 0 to %d", e.Weight, e.Name,
				math.MaxInt32)
		}
		if indexOf(f.scores, e.Name) < 0 {
			f.scores = append(f.scores, scores[at])
		}
		f.scores[indexOf(f.scores, e.Name)].weight = max(e.Weight, 1)
	}
	for i, p := range c.PluginConfig {
		if p.Name != resourcesFit {
			return nil, fmt.Errorf("pluginConfig[%d]: %q has no settings here, only %s has", i, p.Name,
				resourcesFit)
		}
		of, err := fitBy(p.Args)
		if err != nil {
			return nil, fmt.Errorf("pluginConfig[%d]: %w", i, err)
		}
		if at := indexOf(f.scores, resourcesFit); at >= 0 && of != nil {
			f.scores[at].of = of
		}
	}
	return f, nil
}

func indexOf(all []score, name string) int {
	return slices.IndexFunc(all, func(s score) bool { return s.name == name })
}

func unknownScore(where, name string) error {
	var names []string
	for i := range scores {
		names = append(names, scores[i].name)
	}
	return fmt.Errorf("%s: there is no score %q; there are %s", where, name, strings.Join(names, ", "))
}

func fitBy(args json.RawMessage) (func(*cycle, *nodeInfo) int64, error) {
	if len(args) == 0 {
		return nil, nil //nolint:nilnil // nothing is said
	}
	var a fitArgs
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("args: %w; scoringStrategy is supported", err)
	}
	if a.APIVersion != "" && a.APIVersion != configurationVersion || a.Kind != "" && a.Kind != resourcesFit+"Args" {
		return nil, fmt.Errorf("args: this is a %q of %q: a %sArgs of %s is needed", a.Kind, a.APIVersion, resourcesFit,
			configurationVersion)
	}
	if a.ScoringStrategy == nil {
		return nil, nil //nolint:nilnil // nothing is said
	}
	if err := a.ScoringStrategy.validate(); err != nil {
		return nil, fmt.Errorf("args: scoringStrategy: %w", err)
	}
	return a.ScoringStrategy.score, nil
}

// strategy scores a node by the fraction of its resources in use once the pod runs there, with upstream's numbers.
type strategy struct {
	Type      string `json:"type"`
	Resources []struct {
		Name   corev1.ResourceName `json:"name"`
		Weight int64               `json:"weight"`
	} `json:"resources"`
	RequestedToCapacityRatio *struct {
		Shape []point `json:"shape"`
	} `json:"requestedToCapacityRatio"`
}

// point is a point of a curve: the Score, from 0 to 10, of a node at a Utilization in percent.
type point struct {
	Utilization int64 `json:"utilization"`
	Score       int64 `json:"score"`
}

const (
	leastAllocated = "LeastAllocated"
	mostAllocated  = "MostAllocated"
	byRatio        = "RequestedToCapacityRatio"
	// mostPoint is the maximum Score of a point.
	mostPoint = 10
)

func (s *strategy) validate() error {
	switch s.Type {
	case "":
		s.Type = leastAllocated
	case leastAllocated, mostAllocated, byRatio:
	default:
		return fmt.Errorf("there is no type %q; there are %s, %s and %s", s.Type, leastAllocated, mostAllocated, byRatio)
	}
	if len(s.Resources) == 0 {
		s.Resources = append(s.Resources, struct {
			Name   corev1.ResourceName `json:"name"`
			Weight int64               `json:"weight"`
		}{corev1.ResourceCPU, 1})
		s.Resources = append(s.Resources, s.Resources[0])
		s.Resources[1].Name = corev1.ResourceMemory
	}
	for i := range s.Resources {
		r := &s.Resources[i]
		r.Weight = cmp.Or(r.Weight, 1)
		if r.Name == "" || r.Weight < 1 || r.Weight > 100 {
			return fmt.Errorf("resources[%d]: a name and a weight from 1 to 100 are needed, not %q and %d", i, r.Name, r.Weight)
		}
	}
	if (s.Type == byRatio) != (s.RequestedToCapacityRatio != nil) {
		return fmt.Errorf("requestedToCapacityRatio belongs to type %s, and to no other", byRatio)
	}
	if s.Type != byRatio {
		return nil
	}
	shape := s.RequestedToCapacityRatio.Shape
	if len(shape) == 0 {
		return errors.New("requestedToCapacityRatio: shape has no point")
	}
	for i, p := range shape {
		if p.Utilization < 0 || p.Utilization > 100 || p.Score < 0 || p.Score > mostPoint {
			return fmt.Errorf("requestedToCapacityRatio: shape[%d]: utilization is from 0 to 100 and score from 0 to %d", i,
				mostPoint)
		}
		if i > 0 && p.Utilization <= shape[i-1].Utilization {
			return fmt.Errorf("requestedToCapacityRatio: shape[%d]: utilization has to increase from point to point", i)
		}
	}
	return nil
}

func (s *strategy) score(c *cycle, n *nodeInfo) int64 {
	var sum, weights int64
	for _, r := range s.Resources {
		requested, most := c.allocation(n, r.Name)
		if most == 0 {
			continue
		}
		v := s.of(min(requested, most), most)
		if v == 0 && s.Type == byRatio {
			continue // as upstream
		}
		sum, weights = sum+v*r.Weight, weights+r.Weight
	}
	switch {
	case weights == 0:
		return 0
	case s.Type == byRatio:
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

// of returns the score of one resource. requested must not exceed most.
func (s *strategy) of(requested, most int64) int64 {
	switch s.Type {
	case leastAllocated:
		return (most - requested) * mostScore / most
	case mostAllocated:
		return requested * mostScore / most
	}
	used, shape := requested*100/most, s.RequestedToCapacityRatio.Shape
	at := slices.IndexFunc(shape, func(p point) bool { return used <= p.Utilization })
	switch {
	case at < 0:
		return shape[len(shape)-1].Score * (mostScore / mostPoint)
	case at == 0:
		return shape[0].Score * (mostScore / mostPoint)
	}
	from, to := shape[at-1], shape[at]
	return (from.Score*(mostScore/mostPoint) +
		(to.Score-from.Score)*(mostScore/mostPoint)*(used-from.Utilization)/(to.Utilization-from.Utilization))
}

// allocation returns the requested amount of a node's resource once the pod runs there, and the node's amount. Both
// are 0 for an extended resource that the pod does not request.
func (c *cycle) allocation(n *nodeInfo, name corev1.ResourceName) (requested, most int64) {
	switch name {
	case corev1.ResourceCPU:
		return n.score.cpu + c.scoreCPU, n.most.cpu
	case corev1.ResourceMemory:
		return n.score.mem + c.scoreMem, n.most.memory
	case corev1.ResourceEphemeralStorage:
		return n.used.ephemeral + c.need.ephemeral, n.most.ephemeral
	}
	if need := c.need.extended[name]; need > 0 {
		return n.used.extended[name] + need, n.most.extended[name]
	}
	return 0, 0
}
