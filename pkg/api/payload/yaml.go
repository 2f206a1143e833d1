package payload

import (
	"bytes"
	"fmt"

	yamlv3 "go.yaml.in/yaml/v3"
)

// CheckYAML returns a *ShapeError for a YAML document with more than MaxYAMLNodes nodes, or whose aliases expand to
// more than MaxYAML. Invalid YAML passes: its decoder reports the error.
func CheckYAML(data []byte) error {
	nodes := 0
	for i, c := range data {
		switch c {
		case ',', '[', '{', ':', '\n', '?':
			nodes++
		case '-':
			if i+1 == len(data) || data[i+1] == ' ' || data[i+1] == '\t' {
				nodes++
			}
		}
	}
	aliases := bytes.IndexByte(data, '&') >= 0 && bytes.IndexByte(data, '*') >= 0
	// A document with aliases is decoded twice: 200,000 anchors take 1.2 s.
	if nodes > MaxYAMLNodes || aliases && nodes > MaxYAMLNodes/2 {
		return &ShapeError{"the YAML document has too many values: send it as JSON"}
	}
	if !aliases {
		return nil
	}
	var root yamlv3.Node
	if yamlv3.Unmarshal(data, &root) != nil {
		return nil
	}
	e := expansion{known: map[*yamlv3.Node]size{}}
	all, err := e.of(&root, 1)
	if err != nil {
		return err
	}
	if e.aliases > 0 && (all.bytes > MaxYAML || all.nodes > MaxYAMLNodes) {
		return &ShapeError{
			fmt.Sprintf("the YAML document is larger than %d bytes, or has too many values, once its aliases are expanded",
				MaxYAML),
		}
	}
	return nil
}

// expansion measures a document with aliases expanded. It measures each anchor once.
type expansion struct {
	known   map[*yamlv3.Node]size
	aliases int
}

type size struct{ bytes, nodes int64 }

func (e *expansion) of(n *yamlv3.Node, depth int) (size, error) {
	if depth > MaxDepth {
		return size{}, tooDeep()
	}
	if s, ok := e.known[n]; ok {
		return s, nil
	}
	if n.Kind == yamlv3.AliasNode {
		e.aliases++
		if n.Alias == nil {
			return size{}, nil
		}
		return e.of(n.Alias, depth+1)
	}
	if n.Anchor != "" {
		e.known[n] = size{} // the decoder refuses recursive anchors
	}
	s := size{bytes: int64(len(n.Value)) + 4, nodes: 1}
	for _, c := range n.Content {
		in, err := e.of(c, depth+1)
		if err != nil {
			return size{}, err
		}
		// Without aliases, a sum is at most a constant times the square of the document's length. Cap it early for
		// chains of aliases.
		if s.bytes += in.bytes; s.bytes > 1<<40 {
			s.bytes = 1 << 40
		}
		if s.nodes += in.nodes; s.nodes > 1<<40 {
			s.nodes = 1 << 40
		}
	}
	if n.Anchor != "" {
		e.known[n] = s
	}
	return s, nil
}
