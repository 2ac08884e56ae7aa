"""What stays of a configuration: knobs dropped, culprits of a changed loss, each knob's gain."""
